"""The verifiers that a skill's runtime entries name, and what each says of a case.

    finding = await run_verifier(entry, Case.of(task, responses))
    finding.decision, finding.observation

A verifier is a scorer made of an entry's options; it sees only the fields that the entry declares.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.errors import RewardError, UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.checks.extract import references, short
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.json_schema import JsonSchema, JsonSchemaConfig
from burnish.rewards.checks.language import Language, LanguageConfig
from burnish.rewards.checks.length import Length, LengthConfig
from burnish.rewards.checks.match import Match, MatchConfig, token_f1
from burnish.rewards.checks.mathematics import Mathematics, MathematicsConfig
from burnish.rewards.checks.numeric import Numeric, NumericConfig
from burnish.rewards.checks.regex import Regex, RegexConfig
from burnish.rewards.checks.texts import constraint_tools
from burnish.rewards.judges.benchmarks import reference_match
from burnish.rewards.judges.prompting import mark_for, request_of
from burnish.rewards.judges.sanitise import is_blocked, sanitize_metadata
from burnish.rewards.judges.skill_rm.resources import CAPS, SEEN_BY_ALL, Leakage, Resource
from burnish.rewards.scorer import Scope, Scorer, checked
from burnish.seeds import digest
from burnish.source import describe

LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Case:
    """What is judged, in the order in which it is shown."""

    task: Task
    responses: tuple[Response, ...]

    @classmethod
    def of(cls, task: Task, responses: Sequence[Response]) -> Case:
        return cls(task, tuple(responses))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(LABELS[: len(self.responses)])

    @property
    def is_pair(self) -> bool:
        return len(self.responses) == 2

    @property
    def request(self) -> str:
        """What was asked: the conversation, no fields."""
        return request_of(self.task)

    @property
    def shown(self) -> tuple[str, ...]:
        """Every text that a judge sees and must not quote as its own verdict."""
        return (self.request, *(response.text for response in self.responses))

    @property
    def mark(self) -> str:
        """A word that no text shown can know in advance: it depends on all of them."""
        return mark_for(*self.shown)

    @property
    def about(self) -> tuple[str, ...]:
        return (self.task.id, *(response.id for response in self.responses))


TAIL = 400
"""Characters at the end of a response in which a final answer is looked for."""


class FieldVerifier(ABC):
    """Base: a point scorer that may read one field of the task."""

    scope = Scope.POINT
    known: tuple[str, ...] = ("field",)
    default_field = "reference"

    def __init__(self, options: dict[str, Any]) -> None:
        for key in options:
            if key not in self.known:
                raise UserError(f"unknown option '{key}'.{did_you_mean(key, self.known)}")
        self.name = type(self).__name__
        self.options = options
        self.field = str(options.get("field", self.default_field)) if self.known else ""
        self.needs = frozenset({self.field}) if self.field else frozenset()

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> FieldVerifier:
        return cls(options)

    @property
    def fingerprint(self) -> str:
        return digest(self.name, repr(sorted(self.options.items())))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return [self.judge(task, response) for response in responses]

    @abstractmethod
    def judge(self, task: Task, response: Response) -> Reward:
        """One response."""

    def show(self, text: str, visibility: Visibility) -> Reward:
        """No value, and something to read."""
        evidence = (Evidence(self.name, text, visibility),)
        return Reward.failed(self.name, Status.ABSTAIN, "shown to the judge", evidence=evidence)


class ReferenceMatch(FieldVerifier):
    """1 where the reference stands in the response as whole tokens, else 0.

    `where = "end"` looks at the last lines only, where a final answer stands; `repeat = 5` looks for
    the reference written five times in a row, as some benchmarks ask for.
    """

    known = ("field", "where", "repeat")

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.where, self.repeat = options.get("where", "whole"), options.get("repeat", 1)
        if self.where not in ("whole", "end"):
            raise UserError(f"where is {self.where!r}; expected 'whole' or 'end'")
        if isinstance(self.repeat, bool) or not isinstance(self.repeat, int) or self.repeat < 1:
            raise UserError(f"repeat is {self.repeat!r}; expected a whole number of 1 or more")

    def judge(self, task: Task, response: Response) -> Reward:
        wanted = [gold * self.repeat for gold in references(task.fields.get(self.field))]
        text = response.text.rstrip()[-TAIL:] if self.where == "end" else response.text
        # Against an empty text, so that this response alone decides.
        hit = any(
            reference_match({"reference": gold, "responses": {"A": text, "B": ""}}) == "A"
            for gold in wanted
        )
        place = "the end of the response" if self.where == "end" else "the response"
        saw = f"reference {short(' or '.join(wanted))!r} {'stands' if hit else 'is not'} in {place}"
        return Reward(
            self.name, float(hit), evidence=(Evidence(self.name, saw, Visibility.ORACLE),)
        )


class GroundTruthScore(FieldVerifier):
    """How much of the ground truth a response holds: word F1 with it, over the response's end."""

    def judge(self, task: Task, response: Response) -> Reward:
        golds = references(task.fields.get(self.field))
        value = token_f1(response.text[-4 * TAIL :], golds)
        saw = f"word F1 {value:.3f} with the ground truth"
        return Reward(self.name, value, evidence=(Evidence(self.name, saw, Visibility.ORACLE),))


class TextCounts(FieldVerifier):
    """Words, sentences, paragraphs and the like of a response, for the judge to read."""

    known = ()

    def judge(self, task: Task, response: Response) -> Reward:
        counts = constraint_tools(response.text)
        return self.show(", ".join(f"{k} {v}" for k, v in counts.items()), Visibility.VISIBLE)


class ShowField(FieldVerifier):
    """A field of the sample, such as its reference or its checklist, for the judge to read."""

    def judge(self, task: Task, response: Response) -> Reward:
        value = task.fields[self.field]
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        )
        return self.show(text, Visibility.ORACLE)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """The same for all responses; it is said once."""
        first = self.judge(task, responses[0])
        rest = Reward.failed(self.name, Status.ABSTAIN, "the same")
        return [first, *(rest for _ in responses[1:])]


class ShowMetadata(ShowField):
    """The sample's metadata without anything that bears a label, a score, a model or an order."""

    default_field = "metadata"

    def judge(self, task: Task, response: Response) -> Reward:
        clean = sanitize_metadata({self.field: task.fields[self.field]}).get(self.field, {})
        return self.show(json.dumps(clean, ensure_ascii=False, default=str), Visibility.BENCHMARK)


WALL_S = 10.0
"""Default wall clock of one run."""
COMMON = ("flag", "wall_s")
"""Options that every verifier takes: the severity that a violation has, and the wall clock."""

Factory = Callable[[dict[str, Any]], Scorer]


class Finding(Struct, frozen=True, kw_only=True):
    """What a verifier said about a case."""

    entry: Resource
    decision: str
    observation: str
    values: tuple[float | None, ...] = ()
    """One a response, 1 where it satisfies everything."""
    verdicts: tuple[tuple[Verdict, ...], ...] = ()
    """Single criteria, one tuple a response."""
    error: str | None = None

    @property
    def visibility(self) -> Visibility:
        return self.entry.visibility

    @property
    def flag(self) -> str:
        return str(self.entry.options.get("flag", ""))


def _check(config: type[CheckConfig], check: Callable[[Any], Scorer], **fixed: Any) -> Factory:
    """A factory for one of the deterministic checks; options are the check's own settings."""

    def make(options: dict[str, Any]) -> Scorer:
        known = [field.name for field in msgspec.structs.fields(config)]
        for key in options:
            if key not in known:
                raise UserError(f"unknown option '{key}'.{did_you_mean(key, known)}")
        try:
            return check(msgspec.convert(fixed | options, config))
        except msgspec.ValidationError as error:
            raise UserError(f"options: {error}") from None

    return make


def _code_tests(options: dict[str, Any]) -> Scorer:
    from burnish.rewards.checks.code import Code, CodeConfig

    return _check(CodeConfig, Code)(options)


VERIFIERS: dict[str, Factory] = {
    "constraint_checks": _check(InstructionsConfig, Instructions, mode="mean"),
    "reference_match": ReferenceMatch.from_options,
    "answer_match": _check(MatchConfig, Match),
    "numeric_answer": _check(NumericConfig, Numeric),
    "mathematics_answer": _check(MathematicsConfig, Mathematics),
    "json_schema": _check(JsonSchemaConfig, JsonSchema),
    "language": _check(LanguageConfig, Language),
    "length": _check(LengthConfig, Length),
    "pattern": _check(RegexConfig, Regex),
    "code_tests": _code_tests,
    "ground_truth_score_pair": GroundTruthScore.from_options,
    "text_counts": TextCounts.from_options,
    "sample_reference": ShowField.from_options,
    "sample_checklist": ShowField.from_options,
    "sample_metadata": ShowMetadata.from_options,
}
"""What a runtime entry's `implementation_kind` may name."""


def register_verifier(name: str, factory: Factory) -> None:
    """Add a verifier, or a pipeline, of your own: a function from options to a scorer."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"verifier '{name}': expected small letters, digits and '_'.")
    if name in VERIFIERS:
        raise UserError(f"there is already a verifier '{name}'; choose another name.")
    VERIFIERS[name] = factory


def make_verifier(entry: Resource) -> Scorer:
    """The scorer behind an entry; a `UserError` where its options do not fit."""
    options = {key: value for key, value in entry.options.items() if key not in COMMON}
    scorer = VERIFIERS[entry.implementation_kind](options)
    undeclared = sorted(scorer.needs - set(entry.inputs_required))
    if undeclared:
        raise UserError(
            f"'{entry.implementation_kind}' reads the field '{undeclared[0]}', which is not in "
            "inputs_required"
        )
    return scorer


def options_problem(entry: Resource) -> str:
    """Why an entry could not run, or an empty text."""
    flag, wall_s = entry.options.get("flag", ""), entry.options.get("wall_s", WALL_S)
    if flag and flag not in CAPS:
        return (
            f"flag is {flag!r}; expected one of {', '.join(CAPS)}.{did_you_mean(str(flag), CAPS)}"
        )
    if isinstance(wall_s, bool) or not isinstance(wall_s, int | float) or not 0 < wall_s <= 600:
        return f"wall_s is {wall_s!r}; expected seconds, more than 0 and at most 600"
    try:
        make_verifier(entry)
    except ModuleNotFoundError as error:
        return f"'{entry.implementation_kind}' cannot run here: {error}"
    except (UserError, TypeError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


async def run_verifier(entry: Resource, case: Case) -> Finding:
    """Run one entry; whatever goes wrong is a finding with the decision `unavailable`."""
    try:
        task = narrowed(case.task, entry)
        scorer = make_verifier(entry)
        wall_s = float(entry.options.get("wall_s", WALL_S))
        rewards = await checked(scorer, task, case.responses, deadline_s=wall_s)
    except (UserError, RewardError, ModuleNotFoundError) as error:
        return _unavailable(entry, " ".join(str(error).split())[:500])
    except Exception as error:  # boundary: verifiers may be foreign code
        return _unavailable(entry, describe(error))
    broken = [r for r in rewards if r.value is None and r.status is not Status.ABSTAIN]
    if broken:
        return _unavailable(entry, f"{broken[0].status.value}: {broken[0].reason}")
    values = tuple(reward.value for reward in rewards)
    return Finding(
        entry=entry,
        decision=_decision(values, case.labels),
        observation="\n".join(map(_said, case.labels, rewards)),
        values=values,
        verdicts=tuple(reward.verdicts for reward in rewards),
    )


def narrowed(task: Task, entry: Resource) -> Task:
    """The task with the fields that an entry may read; a `UserError` where it may not or cannot."""
    wanted = [name for name in entry.inputs_required if name not in SEEN_BY_ALL]
    missing = [name for name in wanted if task.fields.get(name) in (None, "", [], {})]
    if missing:
        raise UserError(f"the sample has no field '{missing[0]}'")
    for name in wanted:
        if is_blocked(name):
            raise UserError(
                f"the field '{name}' holds a label, a score or an author; no mode sees it"
            )
        if name in task.labels and entry.leakage_level is not Leakage.ORACLE_ONLY:
            raise UserError(
                f"the field '{name}' bears the label and '{entry.id}' is declared "
                f"{entry.leakage_level.value}"
            )
    if "prompt" in entry.inputs_required and "prompt" in task.fields:
        wanted.append("prompt")  # the request as code to complete; the judge sees it anyway
    return replace(task, fields={name: task.fields[name] for name in wanted})


def _unavailable(entry: Resource, why: str) -> Finding:
    return Finding(
        entry=entry, decision="unavailable", observation=f"unavailable: {why}", error=why
    )


def _decision(values: Sequence[float | None], labels: Sequence[str]) -> str:
    """The response that does best alone; for one response, whether it satisfies all."""
    if any(value is None for value in values):
        return "inconclusive"
    known = [value for value in values if value is not None]
    if len(known) == 1:
        return "satisfied" if known[0] >= 1 else "violated" if known[0] <= 0 else "partial"
    best = max(known)
    return labels[known.index(best)] if known.count(best) == 1 else "inconclusive"


def _said(label: str, reward: Reward) -> str:
    value = "no decision" if reward.value is None else f"{reward.value:.3g}"
    seen = "; ".join(evidence.observation for evidence in reward.evidence) or reward.reason
    return f"{label}: {value}: {seen}"
