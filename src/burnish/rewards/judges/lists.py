"""The list judge: rank several responses at once, ties included.

    ranked = ListRanking(JudgeModel(lm))
    rewards = await ranked.score(task, responses)       # from 1 for the best to -1 for the last

The value of a response is how many others it beats minus how many beat it, divided by N - 1: ties
share it, and the values add up to 0. Responses are shown in an order drawn from their texts, and
once more in the reverse of it, so that neither the place in the list nor the order of the caller
decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import asdict

from burnish.errors import UserError
from burnish.records import Response, Reward, Status, Task, Verdict
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
    request_of,
    wording,
)
from burnish.rewards.judges.reading import Table, Typed, read_reply, text
from burnish.rewards.scorer import Scope, gather
from burnish.seeds import digest

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
    """Options of `list`."""

    name: str = "list"
    both_orders: bool = True
    template: str | None = None


def build(judge: JudgeModel, options: Mapping[str, Any]) -> ListRanking:
    """The judge by the name `list`."""
    return ListRanking(judge, **asdict(read_options("list", options, ListOptions)))
