"""Judges of single responses: a rating with reasons, or a yes or no for each item of a rubric.

    rating = PointRating(JudgeModel(lm), lo=1, hi=10)           # value (rating - lo) / (hi - lo)
    rubric = PointRubric(JudgeModel(lm), ["names the source", "is under 100 words"])

The value lies in [0, 1]; the rating or the marks themselves are in `Reward.verdicts`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from burnish.errors import UserError
from burnish.records import Criterion, Response, Reward, Task, Verdict
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    Unreadable,
    check_template,
    question_about,
    wording,
)
from burnish.rewards.judges.reading import Table, read_reply, rows, text, truth, whole
from burnish.rewards.scorer import Scope, gather
from burnish.seeds import digest

V = TypeVar("V")


class Rating(NamedTuple):
    """A number of a scale, with reasons."""

    rating: int
    reasons: str


class Mark(NamedTuple):
    """Whether one item of a rubric is met."""

    item: int
    met: bool
    reasons: str


def rating_table(lo: int, hi: int) -> Table[Rating]:
    """`{"reasons": ..., "rating": 7}`."""
    return Table(Rating, reasons=text, rating=whole(lo, hi))


def read_marks(reply: str, items: int, shown: Sequence[str] = ()) -> list[Mark]:
    """The verdict `{"items": [{"item": 1, "reasons": ..., "met": true}, ...]}`, in order."""
    marks = read_reply(reply, marks_table(items), shown)
    numbers = sorted(one.item for one in marks)
    if numbers != list(range(1, items + 1)):
        raise Unreadable(f"expected each of the items 1 to {items} once, got {numbers[:20]}")
    return sorted(marks)


def marks_table(items: int) -> Table[list[Mark]]:
    """`{"items": [{"item": 1, "reasons": ..., "met": true}, ...]}`."""
    mark = Table(Mark, item=whole(1, items), reasons=text, met=truth)
    return Table(lambda items: items, items=rows(mark))


class PointJudge(ABC, Generic[V]):
    """A scorer that asks about each response on its own."""

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()
    kind = "point"

    def __init__(self, judge: JudgeModel, name: str, template: str, blanks: Sequence[str]) -> None:
        self.judge, self.name, self.template = judge, name, template
        check_template(template, ("mark", "request", "response", *blanks), f"judge '{name}'")

    @property
    def fingerprint(self) -> str:
        settings = repr(sorted(self.blanks().items()))
        return digest(type(self).__name__, self.judge.fingerprint, self.template, settings)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return await gather([partial(self._one, task, response) for response in responses])

    async def _one(self, task: Task, response: Response) -> Reward:
        shown = {"response": response}
        question = question_about(
            self.kind, self.template, task, shown, 0, self.table.schema, **self.blanks()
        )
        judge_reply = await self.judge.ask(question, partial(self.read, shown=(response.text,)))
        if judge_reply.verdict is None:
            return judge_reply.failed(self.name)
        place = (len(judge_reply.evidence) - 1,)
        value, verdicts, reason = self.decide(judge_reply.verdict, place)
        return Reward(
            self.name, value, evidence=judge_reply.evidence, verdicts=tuple(verdicts), reason=reason
        )

    @property
    @abstractmethod
    def table(self) -> Table[Any]:
        """The form of a reply."""

    @abstractmethod
    def blanks(self) -> dict[str, str]:
        """What fills the template besides the mark, the request and the response."""

    @abstractmethod
    def read(self, reply: str, shown: Sequence[str]) -> V:
        """The verdict in a reply."""

    @abstractmethod
    def decide(self, verdict: V, place: tuple[int, ...]) -> tuple[float, Sequence[Verdict], str]:
        """Value, verdicts and reason; `place` is where the reply stands in the evidence."""


class PointRating(PointJudge[Rating]):
    """A whole number from `lo` to `hi`, as a value from 0 to 1."""

    kind = "rating"

    def __init__(
        self,
        judge: JudgeModel,
        *,
        lo: int = 1,
        hi: int = 10,
        name: str = "point",
        template: str | None = None,
    ) -> None:
        if not lo < hi:
            raise UserError(f"judge '{name}': the scale is {lo} to {hi}; expected lo below hi")
        self.lo, self.hi = lo, hi
        super().__init__(judge, name, template or wording("rating"), ("lo", "hi"))

    def blanks(self) -> dict[str, str]:
        return {"lo": str(self.lo), "hi": str(self.hi)}

    @property
    def table(self) -> Table[Rating]:
        return rating_table(self.lo, self.hi)

    def read(self, reply: str, shown: Sequence[str]) -> Rating:
        return read_reply(reply, self.table, shown)

    def decide(
        self, verdict: Rating, place: tuple[int, ...]
    ) -> tuple[float, Sequence[Verdict], str]:
        value = (verdict.rating - self.lo) / (self.hi - self.lo)
        overall = Verdict("overall", float(verdict.rating), evidence=place, reason=verdict.reasons)
        return value, (overall,), f"{verdict.rating} of {self.hi}: {verdict.reasons}"


class PointRubric(PointJudge[list[Mark]]):
    """The weighted share of a rubric's items that a response meets."""

    kind = "rubric items"

    def __init__(
        self,
        judge: JudgeModel,
        items: Sequence[str | Criterion],
        *,
        name: str = "point",
        template: str | None = None,
    ) -> None:
        self.items = tuple(
            item if isinstance(item, Criterion) else Criterion(f"item {number}", item)
            for number, item in enumerate(items, start=1)
        )
        total = math.fsum(item.weight for item in self.items)
        if not self.items or not all(item.text.strip() for item in self.items):
            raise UserError(f"judge '{name}': the rubric is empty; expected at least one item")
        if not all(0 <= item.weight < math.inf for item in self.items) or not total > 0:
            raise UserError(f"judge '{name}': the weights of a rubric are 0 or more, not all 0")
        ids = [item.id for item in self.items]
        if len(set(ids)) < len(ids):
            raise UserError(f"judge '{name}': two items of the rubric have the same id")
        self.total = total
        super().__init__(judge, name, template or wording("rubric"), ("items",))

    @property
    def fingerprint(self) -> str:
        return digest(super().fingerprint, msgspec.json.encode(self.items))

    def blanks(self) -> dict[str, str]:
        lines = [f"{number}. {item.text}" for number, item in enumerate(self.items, start=1)]
        return {"items": "\n".join(lines)}

    @property
    def table(self) -> Table[list[Mark]]:
        return marks_table(len(self.items))

    def read(self, reply: str, shown: Sequence[str]) -> list[Mark]:
        return read_marks(reply, len(self.items), shown)

    def decide(
        self, verdict: list[Mark], place: tuple[int, ...]
    ) -> tuple[float, Sequence[Verdict], str]:
        pairs = list(zip(self.items, verdict, strict=True))
        verdicts = [
            Verdict(item.id, float(mark.met), evidence=place, reason=mark.reasons)
            for item, mark in pairs
        ]
        value = math.fsum(item.weight for item, mark in pairs if mark.met) / self.total
        missed = [item.id for item, mark in pairs if not mark.met]
        met = len(pairs) - len(missed)
        reason = f"{met} of {len(pairs)} items met"
        return value, verdicts, f"{reason}; not: {', '.join(missed)}" if missed else reason


class PointOptions(Options, frozen=True):
    """Options of `point`: a scale, or a rubric."""

    name: str = "point"
    lo: int = 1
    hi: int = 10
    rubric: tuple[str | Criterion, ...] = ()
    """Items as texts, or as tables {id, text, weight}."""
    template: str | None = None


def build(judge: JudgeModel, options: Mapping[str, Any]) -> PointRating | PointRubric:
    """The judge by the name `point`."""
    settings = read_options("point", options, PointOptions)
    if settings.rubric:
        return PointRubric(judge, settings.rubric, name=settings.name, template=settings.template)
    return PointRating(
        judge, lo=settings.lo, hi=settings.hi, name=settings.name, template=settings.template
    )
