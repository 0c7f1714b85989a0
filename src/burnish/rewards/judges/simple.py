"""The direct judge: which of two responses is better, with reasons, in one question."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
from msgspec.structs import asdict

from burnish.errors import ArgumentError, UserError
from burnish.records import Criterion, Response, Reward, Status, Task, Verdict
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    JudgeReply,
    Question,
    Unreadable,
    as_user,
    check_template,
    fence,
    fill,
    mark_for,
    question_about,
    request_of,
    wording,
)
from burnish.rewards.judges.reading import (
    Table,
    Typed,
    one_of,
    read_reply,
    rows,
    text,
    truth,
    whole,
)
from burnish.rewards.scorer import Scope, gather
from burnish.seeds import digest

VALUES = {"A": 1.0, "B": -1.0, "Tie": 0.0}


class Winner(NamedTuple):
    """What a judge says about two responses, A shown first."""

    reasons: str
    winner: str

    @property
    def value(self) -> float:
        return VALUES[self.winner]


WINNER = Table(Winner, reasons=text, winner=one_of(*VALUES))


class DirectPair:
    """A pair scorer: 1 and -1 for the better and the worse response, 0 for a tie."""

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        judge: JudgeModel,
        *,
        name: str = "direct",
        template: str | None = None,
        vote: int = 0,
    ) -> None:
        self.judge, self.name, self.vote = judge, name, vote
        self.template = wording("pair") if template is None else template
        check_template(self.template, ("mark", "request", "first", "second"), f"judge '{name}'")

    @property
    def fingerprint(self) -> str:
        return digest("DirectPair", self.judge.fingerprint, self.template, str(self.vote))

    def for_vote(self, vote: int) -> Self:
        """The same judge asked once more; with a temperature it samples again."""
        return type(self)(self.judge, name=self.name, template=self.template, vote=vote)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        a, b = responses
        if a.text == b.text:
            return both(self.name, Winner("the two texts are the same", "Tie"))
        shown = {"first": a, "second": b}
        question = question_about(
            "pair", self.template, task, shown, self.vote, schema=WINNER.schema
        )
        judge_reply = await self.judge.ask(
            question, partial(read_reply, table=WINNER, shown=(a.text, b.text))
        )
        if judge_reply.verdict is None:
            return [judge_reply.failed(self.name)] * 2
        return both(self.name, judge_reply.verdict, evidence=judge_reply.evidence)


def both(name: str, winner: Winner, **more: Any) -> list[Reward]:
    """The two rewards of a verdict, v and -v, each with the reasons."""
    place = len(more.get("evidence", ())) - 1
    return [
        Reward(
            name,
            value,
            verdicts=(
                Verdict(
                    "overall",
                    value,
                    evidence=(place,) if place >= 0 else (),
                    reason=winner.reasons,
                ),
            ),
            reason=winner.reasons,
            **more,
        )
        for value in (winner.value, 0.0 - winner.value)
    ]


class PairOptions(Options, frozen=True):
    name: str = "direct"
    template: str | None = None
    """Your own wording, with the blanks {mark}, {request}, {first} and {second}."""


def build_pair(judge: JudgeModel, options: Mapping[str, Any]) -> DirectPair:
    return DirectPair(judge, **asdict(read_options("direct", options, PairOptions)))


V = TypeVar("V")


class Rating(NamedTuple):
    rating: int
    reasons: str


class Mark(NamedTuple):
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
    name: str = "point"
    lo: int = 1
    hi: int = 10
    rubric: tuple[str | Criterion, ...] = ()
    """Items as texts, or as tables {id, text, weight}."""
    template: str | None = None

    def check(self) -> None:
        if not self.lo < self.hi:
            raise ArgumentError(f"lo: got {self.lo}, expected below hi, {self.hi}")


def build_point(judge: JudgeModel, options: Mapping[str, Any]) -> PointRating | PointRubric:
    settings = read_options("point", options, PointOptions)
    if settings.rubric:
        return PointRubric(judge, settings.rubric, name=settings.name, template=settings.template)
    return PointRating(
        judge, lo=settings.lo, hi=settings.hi, name=settings.name, template=settings.template
    )


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Ranking(NamedTuple):
    """Ranks from best to worst, each a list of places in the order shown."""

    reasons: str
    ranking: list[list[int]]


def read_ranking(reply: str, count: int, shown: Sequence[str] = ()) -> Ranking:
    """The verdict `{"reasons": ..., "ranking": [["B"], ["A", "C"]]}`; a bare letter is a rank."""
    return read_reply(reply, ranking_table(count), shown)


def ranking_table(count: int) -> Table[Ranking]:
    """The form of a ranking of so many responses."""
    rank = {"type": "array", "items": {"type": "string", "enum": list(LETTERS[:count])}}
    ranks = Typed(partial(_ranks, wanted=LETTERS[:count]), {"type": "array", "items": rank})
    return Table(Ranking, reasons=text, ranking=ranks)


def _ranks(key: str, value: Any, wanted: str) -> list[list[int]]:
    if not isinstance(value, list):
        raise Unreadable(f'expected "{key}" to be a list of ranks')
    ranks = [row if isinstance(row, list) else [row] for row in value]
    letters = [letter for rank in ranks for letter in rank]
    if not all(isinstance(one, str) for one in letters) or sorted(letters) != list(wanted):
        raise Unreadable(
            f"expected each of the letters {', '.join(wanted)} once in the ranking, "
            f"got {letters!r:.80}"
        )
    return [[LETTERS.index(letter) for letter in rank] for rank in ranks if rank]


def rank_values(ranks: Sequence[Sequence[int]]) -> list[float]:
    """(beaten - beaten by) / (N - 1) for each place, from ranks of places."""
    count = sum(len(rank) for rank in ranks)
    values = [0.0] * count
    better = 0
    for rank in ranks:
        worse = count - better - len(rank)
        for place in rank:
            values[place] = (worse - better) / (count - 1) if count > 1 else 0.0
        better += len(rank)
    return values


class ListRanking:
    """A list scorer over a judge's rankings."""

    scope = Scope.LIST
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        judge: JudgeModel,
        *,
        name: str = "list",
        both_orders: bool = True,
        template: str | None = None,
    ) -> None:
        self.judge, self.name, self.both_orders = judge, name, both_orders
        self.asks_both_orders = both_orders
        self.template = template or wording("list")
        check_template(self.template, ("mark", "request", "responses"), f"judge '{name}'")

    @property
    def fingerprint(self) -> str:
        settings = (self.judge.fingerprint, self.template, str(self.both_orders))
        return digest("ListRanking", *settings)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        different = {response.text: response for response in reversed(responses)}
        if len(different) > len(LETTERS):
            raise UserError(
                f"judge '{self.name}' ranks at most {len(LETTERS)} different responses, got "
                f"{len(different)} for task {task.id}; use a pair judge with select.round_robin"
            )
        if len(different) < 2:
            reason = "there is no other response to rank it against"
            return [Reward.failed(self.name, Status.ABSTAIN, reason) for _ in responses]
        # By content, not by the caller's order: shuffling the responses must change nothing.
        order = sorted(different.values(), key=lambda r: mark_for(self.name, r.text))
        orders = [order, order[::-1]] if self.both_orders else [order]
        judge_reply = await gather([partial(self._ask, task, shown) for shown in orders])
        by_text = self._rewards(orders, judge_reply)
        return [by_text[response.text] for response in responses]

    async def _ask(self, task: Task, shown: Sequence[Response]) -> JudgeReply[Ranking]:
        request, texts = request_of(task), [response.text for response in shown]
        mark = mark_for(request, *texts)
        blocks = [
            fence(f"response {letter}", text, mark)
            for letter, text in zip(LETTERS, texts, strict=False)
        ]
        values = {"mark": mark, "request": request, "responses": "\n\n".join(blocks)}
        question = Question(
            "list",
            as_user(fill(self.template, values), task.media, mark),
            (task.id, *(r.id for r in shown)),
            schema=ranking_table(len(texts)).schema,
        )
        return await self.judge.ask(
            question, partial(read_ranking, count=len(texts), shown=tuple(texts))
        )

    def _rewards(
        self, orders: Sequence[Sequence[Response]], judge_reply: Sequence[JudgeReply[Ranking]]
    ) -> dict[str, Reward]:
        evidence = tuple(one for h in judge_reply for one in h.evidence)
        failed = next((h for h in judge_reply if h.verdict is None), None)
        if failed is not None:
            reward = Reward.failed(self.name, failed.status, failed.reason, evidence=evidence)
            return {response.text: reward for response in orders[0]}
        verdicts: dict[str, list[Verdict]] = {response.text: [] for response in orders[0]}
        place = -1
        for number, (order, one) in enumerate(zip(orders, judge_reply, strict=True)):
            place += len(one.replies)
            ranking = one.verdict
            if ranking is None:
                continue
            for response, value in zip(order, rank_values(ranking.ranking), strict=True):
                criterion = ("order shown", "reverse order")[number]
                verdicts[response.text].append(
                    Verdict(criterion, value, evidence=(place,), reason=ranking.reasons)
                )
        return {text: self._reward(given, evidence) for text, given in verdicts.items()}

    def _reward(self, given: Sequence[Verdict], evidence: tuple[Any, ...]) -> Reward:
        values = [verdict.value for verdict in given if verdict.value is not None]
        reason = ", ".join(f"{verdict.criterion} {verdict.value:+.2f}" for verdict in given)
        return Reward(
            self.name,
            sum(values) / len(values),
            evidence=evidence,
            verdicts=tuple(given),
            reason=reason,
        )


class ListOptions(Options, frozen=True):
    name: str = "list"
    both_orders: bool = True
    template: str | None = None


def build_list(judge: JudgeModel, options: Mapping[str, Any]) -> ListRanking:
    return ListRanking(judge, **asdict(read_options("list", options, ListOptions)))
