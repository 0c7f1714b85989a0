"""Does the response obey the instructions that a machine can check? The 25 of IFEval, strictly.

Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models". Value 1 or 0 (all
or nothing), or the share obeyed; one verdict with a reason for each instruction either way.

The rules give what the published checker gives, its surprises included (`**Then` is not the word
`then`, what is both bold and italic counts twice). docs/judging.md lists what still differs: keywords
are literal text, sentences and words in capitals are cut without NLTK's data, and language detection
abstains where it cannot tell instead of passing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from burnish.errors import UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck
from burnish.rewards.checks.instruction_rules import LANGUAGE_OF, RELATIONS, RULES, Ruling
from burnish.rewards.checks.language import DETECT, LANGUAGES, READ, is_language
from burnish.rewards.pool import Outcome


class InstructionsConfig(CheckConfig, frozen=True, tag="instructions"):
    """Every instruction of the task is obeyed: 1, else 0; with `mean`, the share obeyed."""

    ids_field: str = "instruction_id_list"
    arguments_field: str = "kwargs"
    """A list with one table of arguments an instruction, or the same as JSON text."""
    mode: Literal["all", "mean"] = "all"
    confidence: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.5
    """Least probability at which a detected language counts."""
    timeout_s: float = 5.0


class Instruction(NamedTuple):
    """One instruction of a task, ready to be checked."""

    id: str
    arguments: dict[str, Any]


class Instructions(IsolatedCheck[InstructionsConfig]):
    """Checks each instruction; only language detection leaves this process."""

    child = DETECT

    def __init__(self, config: InstructionsConfig) -> None:
        super().__init__(config)
        self.needs = frozenset({config.ids_field, config.arguments_field})

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        instructions = self._read(task)
        if not instructions:
            return [self.abstained("the task has no instructions") for _ in responses]
        guesses: list[Outcome | None] = [None] * len(responses)
        if any(instruction.id in LANGUAGE_OF for instruction in instructions):
            # Capitals hide the language from a detector trained on running text.
            jobs = [{"text": response.text[:READ].lower()} for response in responses]
            guesses = list(await self.isolated(jobs))
        return [
            self._judge(instructions, response, guess)
            for response, guess in zip(responses, guesses, strict=True)
        ]

    def _read(self, task: Task) -> list[Instruction]:
        ids = task.fields.get(self.config.ids_field) or []
        arguments = task.fields.get(self.config.arguments_field) or [{}] * len(ids)
        try:
            return read_instructions(ids, arguments)
        except UserError as error:
            raise UserError(f"task {task.id}: {error}") from None

    def _judge(
        self, instructions: list[Instruction], response: Response, guess: Outcome | None
    ) -> Reward:
        verdicts: list[Verdict] = []
        evidence: list[Evidence] = []
        failed: Outcome | None = None
        for position, instruction in enumerate(instructions):
            ruling = check_instruction(response.text, *instruction)
            if ruling.obeyed and instruction.id in LANGUAGE_OF and guess is not None:
                ruling = self._language(instruction, guess)
                failed = guess if guess.status is not Status.OK else failed
            value = None if ruling.obeyed is None else float(ruling.obeyed)
            saw = f"{instruction.id}: {ruling.saw}"
            evidence.append(Evidence(self.name, saw, Visibility.BENCHMARK))
            verdicts.append(Verdict(instruction.id, value, evidence=(position,), reason=ruling.saw))
        return self._combine(verdicts, evidence, failed)

    def _language(self, instruction: Instruction, guess: Outcome) -> Ruling:
        wanted = LANGUAGE_OF[instruction.id] or instruction.arguments["language"]
        if guess.status is not Status.OK:
            return Ruling(None, f"the language could not be detected: {guess.reason}")
        found, probability = guess.value["language"], guess.value["probability"]
        if probability < self.config.confidence:
            return Ruling(None, "the language cannot be told from this text")
        saw = f"looks like '{found}' ({probability:.2f}); wanted '{wanted}'"
        return Ruling(is_language(found, wanted), saw)

    def _combine(
        self, verdicts: list[Verdict], evidence: list[Evidence], failed: Outcome | None
    ) -> Reward:
        more: dict[str, Any] = {"verdicts": tuple(verdicts), "evidence": tuple(evidence)}
        values = [verdict.value for verdict in verdicts]
        decided = [value for value in values if value is not None]
        if self.config.mode == "all" and 0.0 in decided:
            return Reward(self.name, 0.0, **more)
        if len(decided) < len(values):
            open_ones = ", ".join(v.criterion for v in verdicts if v.value is None)
            status = failed.status if failed else Status.ABSTAIN
            return Reward.failed(self.name, status, f"undecided: {open_ones}", **more)
        return Reward(self.name, sum(decided) / len(decided), **more)


def read_instructions(ids: Sequence[str], arguments: Any) -> list[Instruction]:
    """Instructions with their arguments, checked against what each id takes.

    Arguments that are None count as absent, as in the published tables.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the instructions' arguments are not JSON: {error}.") from None
    if not isinstance(arguments, list | tuple) or len(arguments) != len(ids):
        got = f"{len(arguments)}" if isinstance(arguments, list | tuple) else type(arguments)
        raise UserError(f"{len(ids)} instructions need {len(ids)} tables of arguments; got {got}.")
    read = []
    for name, table in zip(ids, arguments, strict=True):
        rule = RULES.get(name)
        if rule is None:
            raise UserError(f"unknown instruction '{name}'.{did_you_mean(name, RULES)}")
        given = {key: value for key, value in (table or {}).items() if value is not None}
        if set(given) != set(rule.arguments):
            raise UserError(
                f"instruction '{name}' got arguments {sorted(given)}; "
                f"expected {sorted(rule.arguments)}."
            )
        _check_arguments(name, given)
        read.append(Instruction(name, given))
    return read


def _check_arguments(name: str, given: dict[str, Any]) -> None:
    """Raise where an argument has a value that no response could be held against."""
    for argument, value in given.items():
        if argument.endswith("relation") and value not in RELATIONS:
            raise UserError(
                f"instruction '{name}' got {argument} {value!r}; "
                f"expected {' or '.join(map(repr, RELATIONS))}."
            )
        if argument == "language" and str(value) not in LANGUAGES and value != "zh":
            raise UserError(
                f"instruction '{name}' got language {value!r}, which cannot be detected; expected "
                f"an ISO 639-1 code: de, en, ...{did_you_mean(str(value), LANGUAGES)}"
            )


def check_instruction(text: str, id: str, arguments: dict[str, Any]) -> Ruling:
    """Whether a text obeys one instruction, but for the language it is written in.

    A blank text obeys nothing.
    """
    if not text.strip():
        return Ruling(False, "the response is blank")
    return RULES[id].check(text, **arguments)
