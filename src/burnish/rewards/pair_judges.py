"""Judges of two texts: one small protocol, and what makes one of a function, a score or a model.

    judge = CallablePairJudge(lambda prompt, a, b: (len(a), len(b)))
    await judge.compare([(prompt, a, b), ...])      # [(3.0, 5.0), ...], None where it cannot say

A judge only orders the two texts of a pair: its scale is its own. The judges of this module also
give `pair_verdicts`, which say in what words a verdict was given and why there is none.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import anyio

from burnish import boundary
from burnish.boundary import Seconds, reader
from burnish.errors import RewardError, UserError
from burnish.records import Evidence, Message, Response, Reward, Status, Task, Visibility
from burnish.rewards.function import call_all, free_parameters, from_function
from burnish.rewards.pairs import two_finite
from burnish.rewards.scorer import (
    Scope,
    Scorer,
    checked,
    fingerprint,
    function_fingerprint,
    gather,
)
from burnish.seeds import digest
from burnish.source import describe, is_cancelled

Pair = tuple[str, str, str]
"""The prompt, the text that is shown first and the text that is shown second."""


class PairVerdict(NamedTuple):
    """What a judge said about one pair."""

    scores: tuple[float, float] | None
    """Of the first and of the second text; None where there is no verdict."""
    said: str = ""
    """The judge's own words, where it has any."""
    status: Status = Status.OK
    reason: str = ""
    """Why there are no scores."""
    visibility: Visibility = Visibility.VISIBLE
    """Oracle where the judge looked at the label."""

    @classmethod
    def none(cls, status: Status, reason: str, said: str = "") -> PairVerdict:
        return cls(None, said, status, reason)


@runtime_checkable
class PairJudge(Protocol):
    """Anything that can say which of two texts is better."""

    async def compare(self, pairs: Sequence[Pair], /) -> Sequence[tuple[float, float] | None]: ...


class ExplainingJudge(ABC):
    """A judge that says more than two numbers."""

    name: str = "judge"
    needs: frozenset[str] = frozenset()

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A text that changes with the judge's settings and code."""

    concurrency = 64
    """Pairs of one call that are judged at once."""

    async def pair_verdicts(self, pairs: Sequence[Pair]) -> list[PairVerdict]:
        """One verdict a pair, in order; a pair that comes again is another vote on it."""
        seen: Counter[Pair] = Counter()
        calls = []
        for pair in pairs:
            calls.append(partial(self.judge_pair, pair, seen[pair]))
            seen[pair] += 1
        return await gather(calls, limit=self.concurrency) if calls else []

    async def judge_pair(self, pair: Pair, vote: int) -> PairVerdict:
        """The verdict on one pair; a judge that takes all at once has its own `pair_verdicts`."""
        raise NotImplementedError

    async def compare(self, pairs: Sequence[Pair], /) -> list[tuple[float, float] | None]:
        return [verdict.scores for verdict in await self.pair_verdicts(pairs)]

    def about(self, task: Task, responses: Sequence[Response]) -> Self:
        """The judge for this task alone; most judges need no more than the texts."""
        return self


async def ask(
    judge: PairJudge, pairs: Sequence[Pair], *, deadline_s: float | None = None
) -> list[PairVerdict]:
    """Ask any judge through one gate: a verdict a pair, or `RewardError` for a broken contract.

    An exception or a deadline leaves every pair of this call without a verdict.
    """
    if not pairs:
        return []
    answers: Any = None
    try:
        with anyio.move_on_after(math.inf if deadline_s is None else deadline_s) as scope:
            if isinstance(judge, ExplainingJudge):
                answers = await judge.pair_verdicts(pairs)
            else:
                answers = await judge.compare(pairs)
    except (UserError, RewardError):
        raise
    except BaseException as error:  # boundary: a judge is foreign code
        if is_cancelled(error):
            raise
        return [PairVerdict.none(Status.INFRA_ERROR, describe(error))] * len(pairs)
    if scope.cancelled_caught:
        late = PairVerdict.none(Status.TIMEOUT, f"no verdict within {deadline_s:g} s")
        return [late] * len(pairs)
    return _each(answers, len(pairs), judge_name(judge))


def judge_name(judge: PairJudge) -> str:
    return str(getattr(judge, "name", type(judge).__name__))


def _each(answers: Any, expected: int, name: str) -> list[PairVerdict]:
    if not isinstance(answers, list | tuple) or len(answers) != expected:
        size = f" of {len(answers)}" if isinstance(answers, list | tuple) else ""
        raise RewardError(
            f"judge '{name}' returned {type(answers).__name__}{size} for {expected} pairs; "
            "expected a list with two scores or None for each pair, in order."
        )
    return [_pair_verdict(answer, name) for answer in answers]


def _pair_verdict(answer: Any, name: str) -> PairVerdict:
    if isinstance(answer, PairVerdict):
        return answer
    if answer is None:
        return PairVerdict.none(Status.ABSTAIN, f"judge '{name}' gave no verdict")
    if isinstance(answer, str | bytes | Mapping) or not hasattr(answer, "__iter__"):
        raise RewardError(
            f"judge '{name}' returned {type(answer).__name__} {answer!r:.60} for a pair; expected "
            "two scores, of the first and of the second text, or None."
        )
    scores = two_finite(answer)
    if scores is None:
        shown = " ".join(f"{answer!r:.60}".split())
        return PairVerdict.none(Status.PARSE_ERROR, f"expected two finite scores, got {shown}")
    return PairVerdict(scores)


class CallablePairJudge(ExplainingJudge):
    """A function as a judge: `f(prompt, a, b)` for one pair, or `f(pairs)` for a list of them.

    Which of the two is read off the number of arguments it requires. It may be async; if not it
    runs in a thread, and `deadline_s` bounds each call. An exception costs only its own call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        options: Mapping[str, Any] | None = None,
        deadline_s: float = 30.0,
        name: str = "",
    ) -> None:
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.function, self.options = function, dict(options or {})
        self.deadline_s: float = reader(Seconds)("deadline_s", deadline_s, boundary.Call())
        required = [
            p.name
            for p in free_parameters(function, f"judge '{self.name}'", self.options)
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if len(required) not in (1, 3):
            raise UserError(
                f"judge '{self.name}' requires {', '.join(required) or 'nothing'}; expected "
                "f(prompt, a, b) for one pair or f(pairs) for a list."
            )
        self.takes_list = len(required) == 1

    @property
    def fingerprint(self) -> str:
        return digest(function_fingerprint(self.function), repr(sorted(self.options.items())))

    async def pair_verdicts(self, pairs: Sequence[Pair]) -> list[PairVerdict]:
        if self.takes_list:
            job = partial(self.function, list(pairs), **self.options)
            (call,) = await call_all([job], self.deadline_s)
            if call.failure is not None:
                return [PairVerdict.none(*call.failure)] * len(pairs)
            return _each(call.value, len(pairs), self.name)
        jobs = [partial(self.function, *pair, **self.options) for pair in pairs]
        return [
            PairVerdict.none(*call.failure)
            if call.failure is not None
            else _pair_verdict(call.value, self.name)
            for call in await call_all(jobs, self.deadline_s)
        ]


class OfScorer(ExplainingJudge):
    """Base of judges made of a scorer; it sees the task and the responses where they are known."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.name, self.needs = scorer, scorer.name, scorer.needs
        self._task: Task | None = None
        self._responses: Mapping[str, Response] = {}

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.scorer)

    def about(self, task: Task, responses: Sequence[Response]) -> Self:
        """With the task's fields and the responses' own ids and lengths, which a text alone lacks."""
        other = copy(self)
        other._task = task
        other._responses = {response.text: response for response in reversed(responses)}
        return other

    def task_of(self, prompt: str) -> Task:
        return self._task or Task("pair", (Message("user", prompt),))

    def response_of(self, text: str) -> Response:
        known = self._responses.get(text)
        return known or Response(digest(text.encode("utf-8", "surrogatepass")), text)


class ScoreJudge(OfScorer):
    """A score of single texts as a judge of pairs: the higher score wins (Bradley-Terry).

    `scorer` is any pointwise `Scorer`, or a function as `from_function` takes it. Each text is
    scored once, however many pairs it is in.
    """

    def __init__(self, scorer: Scorer | Callable[..., Any]) -> None:
        super().__init__(scorer if isinstance(scorer, Scorer) else from_function(scorer))
        weight = getattr(self.scorer, "weight", 1.0)
        if self.scorer.scope is not Scope.POINT or weight != 1:
            raise UserError(
                f"judge of scores: reward '{self.name}' has scope {self.scorer.scope.value} and weight "
                f"{weight:g}; expected point and 1: only the order of two scores matters."
            )

    async def pair_verdicts(self, pairs: Sequence[Pair]) -> list[PairVerdict]:
        rewards: dict[tuple[str, str], Reward] = {}
        for prompt in dict.fromkeys(pair[0] for pair in pairs):
            asked = [pair for pair in pairs if pair[0] == prompt]
            texts = list(dict.fromkeys(text for pair in asked for text in pair[1:]))
            shown = [self.response_of(text) for text in texts]
            scored = await checked(self.scorer, self.task_of(prompt), shown)
            rewards |= {(prompt, text): r for text, r in zip(texts, scored, strict=True)}
        return [_scored(rewards[prompt, a], rewards[prompt, b]) for prompt, a, b in pairs]


def _scored(first: Reward, second: Reward) -> PairVerdict:
    if first.value is None or second.value is None:
        undecided = first if first.value is None else second
        return PairVerdict.none(undecided.status, f"a text has no score: {undecided.reason}")
    return PairVerdict((first.value, second.value), visibility=sight_of(first))


def sight_of(reward: Reward) -> Visibility:
    """Oracle where any of its evidence looked at the label."""
    is_oracle = any(one.visibility is Visibility.ORACLE for one in all_evidence(reward))
    return Visibility.ORACLE if is_oracle else Visibility.VISIBLE


def all_evidence(reward: Reward) -> list[Evidence]:
    return [*reward.evidence, *(one for part in reward.parts for one in all_evidence(part))]
