"""Checks that need no taste (OpenRS, pointwise verifiable rubrics).

    rewards = await GroundTruth(judge).score(task, responses)       # -1, 0 or 1 each
    rewards = await Constraints(judge).score(task, responses)       # the share that is kept

Each check scores a response on its own: does it agree with the reference, is it in the request's
language, which share of the stated constraints does it keep? `gate` puts them in front of the judge.
Where we differ from the reference code: all constraints count, not the first; no generated code runs
in this process; and a check that failed is no verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from burnish.errors import UserError
from burnish.records import (
    Response,
    Reward,
    Status,
    Task,
    Verdict,
    Visibility,
)
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.language import DETECT, LANGUAGES, READ, is_language
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.openrs.library import language_of
from burnish.rewards.judges.openrs.prompt import marked_object, prompt, templates_hash
from burnish.rewards.judges.prompting import as_user, mark_for, request_of
from burnish.rewards.judges.questions import Heard, Question, Unreadable
from burnish.rewards.pool import Outcome
from burnish.rewards.scorer import Scope, checked, gather
from burnish.seeds import digest


class GroundTruth:
    """-1, 0 or 1 by a model that sees the reference: oracle evidence, declared as such.

    A task without the field has no value here.
    """

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()

    def __init__(
        self, judge: JudgeModel, *, field: str = "answer", name: str = "ground_truth"
    ) -> None:
        self.judge, self.field, self.name = judge, field, name

    @property
    def fingerprint(self) -> str:
        return digest(self.judge.fingerprint, templates_hash(), self.field, self.name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        reference = task.fields.get(self.field)
        if reference is None or not str(reference).strip():
            reason = f"the task has no reference in '{self.field}'"
            return [Reward.failed(self.name, Status.ABSTAIN, reason) for _ in responses]
        calls = [partial(self._one, task, response, str(reference)) for response in responses]
        return await gather(calls)

    async def _one(self, task: Task, response: Response, reference: str) -> Reward:
        question, mark = _question("ground_truth", task, response, reference)
        heard = await self.judge.ask(question, partial(_read_score, mark=mark))
        evidence = tuple(replace(e, visibility=Visibility.ORACLE) for e in heard.evidence)
        if heard.verdict is None:
            return Reward.failed(self.name, heard.status, heard.reason, evidence=evidence)
        value, reason = heard.verdict
        return Reward(self.name, value, evidence=evidence, reason=reason)


class LanguageMatchConfig(CheckConfig, frozen=True, tag="language_match"):
    """The response is in the language of the request: 1, in another: 0, unsure: no value."""

    field: str = "response_language"
    """Task field with an ISO 639-1 code, for requests that ask for another language."""
    confidence: float = 0.7
    min_letters: int = 20
    """Shorter texts are not judged."""
    timeout_s: float = 5.0


class LanguageMatch(IsolatedCheck[LanguageMatchConfig]):
    """Detects both languages in a child process."""

    child = DETECT

    def __init__(self, config: LanguageMatchConfig | None = None) -> None:
        super().__init__(LanguageMatchConfig() if config is None else config)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        wanted = task.fields.get(self.config.field)
        texts = [response.text for response in responses]
        if wanted is None:
            asked, *found = await self.isolated([_cut(task.prompt), *map(_cut, texts)])
            wanted = self._told(asked)
            if wanted is None:
                reason = "the request's language cannot be told"
                return [self.abstained(reason) for _ in responses]
        else:
            if str(wanted) not in LANGUAGES and wanted != "zh":
                raise UserError(
                    f"task {task.id}: field '{self.config.field}' is {wanted!r}; expected an "
                    "ISO 639-1 code: de, en, ..."
                )
            found = await self.isolated([_cut(text) for text in texts])
        return [self._reward(guess, str(wanted)) for guess in found]

    def _reward(self, guess: Outcome, wanted: str) -> Reward:
        if guess.status != Status.OK:
            return self.undecided(guess, "the language could not be detected")
        found = self._told(guess)
        if found is None:
            return self.abstained("the response's language cannot be told")
        matches = is_language(found, wanted) or is_language(wanted, found[:2])
        return self.decided(float(matches), f"looks like '{found}'; wanted '{wanted}'")

    def _told(self, guess: Outcome) -> str | None:
        """The language, where the text is long enough and the detector sure enough."""
        if guess.status != Status.OK:
            return None
        sure = guess.value["probability"] >= self.config.confidence
        return guess.value["language"] if sure and self._is_long(guess) else None

    def _is_long(self, guess: Outcome) -> bool:
        # A Chinese character says as much about its language as several letters do.
        least = self.config.min_letters / (4 if guess.value["language"].startswith("zh") else 1)
        return bool(guess.value["letters"] >= least)


class Constraints:
    """The share of all stated constraints that a response keeps.

    Instructions with an id (those of IFEval) are checked by rule; constraints in words, in the
    field `field`, are put to the judge one by one. One that cannot be decided leaves no value.
    """

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        judge: JudgeModel | None = None,
        *,
        field: str = "constraints",
        instructions: InstructionsConfig | None = None,
        name: str = "constraints",
    ) -> None:
        self.judge, self.field, self.name = judge, field, name
        config = InstructionsConfig(mode="mean") if instructions is None else instructions
        self.rules = Instructions(replace(config, mode="mean"))

    @property
    def fingerprint(self) -> str:
        judge = "" if self.judge is None else self.judge.fingerprint
        return digest(judge, templates_hash(), self.rules.fingerprint, self.field, self.name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        worded = self._worded(task)
        if worded and self.judge is None:
            raise UserError(
                f"reward '{self.name}': task {task.id} has {len(worded)} constraints in words in "
                f"'{self.field}'; give a judge, or instruction ids that a rule can check."
            )
        by_rule = await checked(self.rules, task, responses) if self._has_ids(task) else []
        rewards = []
        for place, response in enumerate(responses):
            calls = [partial(self._ask, task, response, text) for text in worded]
            heard = list(zip(worded, await gather(calls) if calls else [], strict=True))
            rewards.append(self._reward(by_rule[place] if by_rule else None, heard))
        return rewards

    def _reward(
        self, ruled: Reward | None, heard: Sequence[tuple[str, Heard[tuple[float, str]]]]
    ) -> Reward:
        if ruled is None and not heard:
            return Reward.failed(self.name, Status.ABSTAIN, "the task states no constraints")
        if ruled is not None and not ruled.verdicts:
            return Reward.failed(self.name, ruled.status, ruled.reason)
        evidence = list(ruled.evidence) if ruled else []
        verdicts = list(ruled.verdicts) if ruled else []
        status = Status.OK if ruled is None else ruled.status
        for text, one in heard:
            places = tuple(range(len(evidence), len(evidence) + len(one.replies)))
            value, reason = (None, one.reason) if one.verdict is None else one.verdict
            verdicts.append(Verdict(text, value, evidence=places, reason=reason))
            evidence += [replace(e, visibility=Visibility.BENCHMARK) for e in one.evidence]
            status = status if one.verdict is not None or status is not Status.OK else one.status
        more: dict[str, Any] = {"evidence": tuple(evidence), "verdicts": tuple(verdicts)}
        kept = [verdict.value for verdict in verdicts if verdict.value is not None]
        if len(kept) < len(verdicts):
            open_ones = len(verdicts) - len(kept)
            reason = f"{open_ones} of {len(verdicts)} constraints undecided"
            status = Status.ABSTAIN if status is Status.OK else status
            return Reward.failed(self.name, status, reason, **more)
        reason = f"{sum(kept):g} of {len(kept)} constraints kept"
        return Reward(self.name, sum(kept) / len(kept), reason=reason, **more)

    async def _ask(self, task: Task, response: Response, text: str) -> Heard[tuple[float, str]]:
        question, mark = _question("constraint", task, response, text)
        if self.judge is None:
            raise TypeError("constraints in words need a judge")
        return await self.judge.ask(question, partial(_read_satisfied, mark=mark))

    def _has_ids(self, task: Task) -> bool:
        return bool(task.fields.get(self.rules.config.ids_field))

    def _worded(self, task: Task) -> list[str]:
        """Constraints in words: a list of texts or of tables with a `rule`, or that as JSON."""
        given = task.fields.get(self.field) or []
        try:
            listed = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            listed = [given]
        texts = [c.get("rule") if isinstance(c, Mapping) else c for c in listed]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError(
                f"task {task.id}: field '{self.field}' holds {given!r:.60}; expected a list of "
                "texts, or of tables with a text 'rule'."
            )
        return [str(text) for text in texts]


def _question(kind: str, task: Task, response: Response, reference: str) -> tuple[Question, str]:
    request = request_of(task)
    mark = mark_for(request, response.text, reference)
    text = prompt(
        kind,
        language_of(request),
        mark,
        request=request,
        first=response.text,
        reference=reference,
    )
    return Question(f"openrs {kind}", as_user(text), (task.id, response.id)), mark


def _read_score(reply: str, mark: str) -> tuple[float, str]:
    table = marked_object(reply, mark)
    score = table.get("score")
    if isinstance(score, bool) or score not in (-1, 0, 1):
        raise Unreadable(f"expected score -1, 0 or 1, got {score!r:.40}")
    return float(score), str(table.get("reason", ""))


def _read_satisfied(reply: str, mark: str) -> tuple[float, str]:
    table = marked_object(reply, mark)
    word = str(table.get("satisfied")).strip().lower()
    value = {"yes": 1.0, "true": 1.0, "是": 1.0, "no": 0.0, "false": 0.0, "否": 0.0}.get(word)
    if value is None:
        raise Unreadable(f"expected satisfied yes or no, got {table.get('satisfied')!r:.40}")
    return value, str(table.get("reason", ""))


def _cut(text: str) -> dict[str, Any]:
    return {"text": text[:READ]}
