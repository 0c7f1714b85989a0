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
from burnish.records import Criterion, Evidence, Response, Reward, Status, Task, Verdict
from burnish.rewards.judges.benchmarks import LETTERS
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
        read = partial(read_reply, table=WINNER, shown=(a.text, b.text))
        reply = await self.judge.ask(question, read)
        if reply.verdict is None:
            return [reply.failed(self.name)] * 2
        return both(self.name, reply.verdict, reply.evidence)


def both(name: str, said: Winner, evidence: tuple[Evidence, ...] = ()) -> list[Reward]:
    """The two rewards of a verdict, v and -v, each with the reasons."""
    place = (len(evidence) - 1,) if evidence else ()
    return [
        Reward(
            name,
            value,
            evidence=evidence,
            verdicts=(Verdict("overall", value, evidence=place, reason=said.reasons),),
            reason=said.reasons,
        )
        for value in (VALUES[said.winner], 0.0 - VALUES[said.winner])
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

    def __init__(
        self, judge: JudgeModel, name: str, template: str, table: Table[V], blanks: dict[str, str]
    ) -> None:
        """`blanks` fill the template besides the mark, the request and the response."""
        self.judge, self.name, self.template = judge, name, template
        self.table, self.blanks = table, blanks
        check_template(template, ("mark", "request", "response", *blanks), f"judge '{name}'")

    @property
    def fingerprint(self) -> str:
        settings = repr(sorted(self.blanks.items()))
        return digest(type(self).__name__, self.judge.fingerprint, self.template, settings)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return await gather([partial(self._one, task, response) for response in responses])

    async def _one(self, task: Task, response: Response) -> Reward:
        shown = {"response": response}
        question = question_about(
            self.kind, self.template, task, shown, 0, self.table.schema, **self.blanks
        )
        reply = await self.judge.ask(question, partial(self.read, shown=(response.text,)))
        if reply.verdict is None:
            return reply.failed(self.name)
        place = (len(reply.evidence) - 1,)
        value, verdicts, reason = self.decide(reply.verdict, place)
        return Reward(self.name, value, evidence=reply.evidence, verdicts=verdicts, reason=reason)

    def read(self, reply: str, shown: Sequence[str]) -> V:
        """The verdict in a reply."""
        return read_reply(reply, self.table, shown)

    @abstractmethod
    def decide(self, verdict: V, place: tuple[int, ...]) -> tuple[float, tuple[Verdict, ...], str]:
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
        blanks = {"lo": str(lo), "hi": str(hi)}
        super().__init__(judge, name, template or wording("rating"), rating_table(lo, hi), blanks)

    def decide(
        self, verdict: Rating, place: tuple[int, ...]
    ) -> tuple[float, tuple[Verdict, ...], str]:
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
        weights = [item.weight for item in self.items]
        self.total = math.fsum(weights)
        if (
            not all(0 <= weight < math.inf for weight in weights)
            or not self.total > 0
            or not all(item.text.strip() for item in self.items)
            or len({item.id for item in self.items}) < len(weights)
        ):
            raise UserError(
                f"judge '{name}': expected a rubric of at least one item, each with a text, an id of its "
                "own and a weight of 0 or more, not all 0"
            )
        lines = [f"{number}. {item.text}" for number, item in enumerate(self.items, start=1)]
        blanks = {"items": "\n".join(lines)}
        table = marks_table(len(weights))
        super().__init__(judge, name, template or wording("rubric"), table, blanks)

    @property
    def fingerprint(self) -> str:
        return digest(super().fingerprint, msgspec.json.encode(self.items))

    def read(self, reply: str, shown: Sequence[str]) -> list[Mark]:
        return read_marks(reply, len(self.items), shown)

    def decide(
        self, verdict: list[Mark], place: tuple[int, ...]
    ) -> tuple[float, tuple[Verdict, ...], str]:
        pairs = list(zip(self.items, verdict, strict=True))
        verdicts = tuple(
            Verdict(item.id, float(mark.met), evidence=place, reason=mark.reasons)
            for item, mark in pairs
        )
        value = math.fsum(item.weight for item, mark in pairs if mark.met) / self.total
        missed = [item.id for item, mark in pairs if not mark.met]
        reason = f"{len(pairs) - len(missed)} of {len(pairs)} items met"
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
    own = read_options("point", options, PointOptions)
    if own.rubric:
        return PointRubric(judge, own.rubric, name=own.name, template=own.template)
    return PointRating(judge, lo=own.lo, hi=own.hi, name=own.name, template=own.template)


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
    given = value if isinstance(value, list) else [value]
    ranks = [row if isinstance(row, list) else [row] for row in given]
    letters = [letter for rank in ranks for letter in rank]
    if sorted(map(str, letters)) != list(wanted):
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


class ListOptions(Options, frozen=True):
    name: str = "list"
    both_orders: bool = True
    template: str | None = None


class ListRanking:
    """A list scorer over a judge's rankings."""

    scope = Scope.LIST
    needs: frozenset[str] = frozenset()

    def __init__(self, judge: JudgeModel, **options: Any) -> None:
        """Options are those of `ListOptions`."""
        own = ListOptions(**options)
        self.judge, self.name, self.asks_both_orders = judge, own.name, own.both_orders
        self.template = own.template or wording("list")
        check_template(self.template, ("mark", "request", "responses"), f"judge '{self.name}'")

    @property
    def fingerprint(self) -> str:
        settings = (self.judge.fingerprint, self.template, str(self.asks_both_orders))
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
            return [Reward.failed(self.name, Status.ABSTAIN, reason)] * len(responses)
        # By content, not by the caller's order: shuffling the responses must change nothing.
        order = sorted(different.values(), key=lambda r: mark_for(self.name, r.text))
        orders = [order, order[::-1]] if self.asks_both_orders else [order]
        replies = await gather([partial(self._ask, task, shown) for shown in orders])
        by_text = self._rewards(orders, replies)
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
        self, orders: Sequence[Sequence[Response]], replies: Sequence[JudgeReply[Ranking]]
    ) -> dict[str, Reward]:
        evidence = tuple(one for reply in replies for one in reply.evidence)
        verdicts: dict[str, list[Verdict]] = {response.text: [] for response in orders[0]}
        place = -1
        for number, (order, reply) in enumerate(zip(orders, replies, strict=True)):
            place += len(reply.replies)
            said = reply.verdict
            if said is None:
                failed = Reward.failed(self.name, reply.status, reply.reason, evidence=evidence)
                return dict.fromkeys(verdicts, failed)
            criterion = ("order shown", "reverse order")[number]
            for response, value in zip(order, rank_values(said.ranking), strict=True):
                verdict = Verdict(criterion, value, evidence=(place,), reason=said.reasons)
                verdicts[response.text].append(verdict)
        rewards = {}
        for shown, given in verdicts.items():
            values = [verdict.value or 0.0 for verdict in given]
            reason = ", ".join(f"{verdict.criterion} {verdict.value:+.2f}" for verdict in given)
            mean = sum(values) / len(values)
            rewards[shown] = Reward(
                self.name, mean, evidence=evidence, verdicts=tuple(given), reason=reason
            )
        return rewards


def build_list(judge: JudgeModel, options: Mapping[str, Any]) -> ListRanking:
    return ListRanking(judge, **asdict(read_options("list", options, ListOptions)))
