"""Pair scorers made fair and pointwise: both orders of a pair, and an anchor to compare with.

BothOrders(pair, rule="votes")          # the place of a response cannot win
Anchor(pair, "reference")               # one response at a time, against a field of the task
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

from msgspec.structs import replace

from burnish.errors import RewardError, UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Visibility
from burnish.rewards.combine import Combination, Voting, adopt
from burnish.rewards.scorer import Scope, Scorer, checked, gather

OrderRule = Literal["mean", "votes", "strict", "abstain"]


class BothOrders(Voting):
    """A pair scorer asked in both orders, so that the place of a response cannot win.

    `rule` makes one value of the two, each antisymmetric in the responses:
    "mean": the mean where the orders agree; orders that name different winners `abstain`.
    "votes": half the sum of the two signs, -1 to 1; orders that disagree are a tie, 0, which counts.
    "strict": 1 or -1 only where both orders name that winner, else 0.
    "abstain": 1, -1 or 0 where both orders say the same; no value (`abstain`) where they do not.
    An order without a value leaves the pair without one, whatever the rule.
    """

    def __init__(self, pair: Scorer, *, name: str = "", rule: OrderRule = "mean") -> None:
        _need_pair("BothOrders", pair)
        known = get_args(OrderRule)
        if rule not in known:
            raise UserError(
                f"both orders of '{pair.name}': rule is '{rule}'; expected {', '.join(known)}."
                f"{did_you_mean(rule, known)}"
            )
        self.rule = rule
        # The rule that came first leaves no trace, so that its scores stay in caches.
        super().__init__(
            name or pair.name, (pair,), Scope.PAIR, *([] if rule == "mean" else [rule])
        )

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        pair, (a, b) = self.children[0], responses
        forward, backward = await gather(
            [partial(compare, pair, task, a, b), partial(compare, pair, task, b, a)]
        )
        return [
            join_orders(
                self.name, replace(one, name="forward"), replace(two, name="backward"), self.rule
            )
            for one, two in zip(forward, reversed(backward), strict=True)
        ]


def join_orders(name: str, one: Reward, two: Reward, rule: OrderRule) -> Reward:
    """One response's reward from what each order said of it."""
    parts = (one, two)
    if one.value is None or two.value is None:
        undecided = one if one.value is None else two
        reason = f"one order has no value: {undecided.reason}"
        return Reward.failed(name, undecided.status, reason, parts=parts)
    is_split = one.value * two.value < 0
    if rule == "abstain":
        is_split = _sign(one.value) != _sign(two.value)
    reason = f"the orders disagree: {one.value:+g} and {two.value:+g}" if is_split else ""
    if is_split and rule in ("mean", "abstain"):
        return Reward.failed(name, Status.ABSTAIN, reason, parts=parts)
    return Reward(name, two_orders(one.value, two.value, rule), parts=parts, reason=reason)


def two_orders(forward: float, backward: float, rule: OrderRule) -> float:
    """One value of two, both seen from the same response; `join_orders` sees where they disagree."""
    if rule == "mean":
        return (forward + backward) / 2
    votes = _sign(forward), _sign(backward)
    if rule in ("strict", "abstain"):
        return float(votes[0]) if votes[0] == votes[1] else 0.0
    return sum(votes) / 2


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


class Anchor(Combination):
    """A pair scorer made pointwise: every response meets the same reference.

    The reference is a response, or the name of a task field that holds its text.
    """

    def __init__(self, pair: Scorer, reference: Response | str, *, name: str = "") -> None:
        _need_pair("Anchor", pair)
        self.reference = reference
        super().__init__(name or pair.name, (pair,), Scope.POINT, reference)
        if isinstance(reference, str):
            self.needs |= {reference}

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        anchor = self._anchor(task)
        if anchor is None:
            reason = f"the field '{self.reference}' holds no text to compare with"
            return [Reward.failed(self.name, Status.ABSTAIN, reason) for _ in responses]
        pair = self.children[0]
        calls = [partial(compare, pair, task, response, anchor) for response in responses]
        rewards = [adopt(self.name, both[0], (both[0],)) for both in await gather(calls)]
        if isinstance(self.reference, Response):
            return rewards
        shows_label = self.reference in task.labels
        evidence = Evidence(
            self.name,
            f"compared with the field '{self.reference}'",
            Visibility.ORACLE if shows_label else Visibility.BENCHMARK,
        )
        return [replace(reward, evidence=(evidence,)) for reward in rewards]

    def _anchor(self, task: Task) -> Response | None:
        if isinstance(self.reference, Response):
            return self.reference
        text = task.fields.get(self.reference)
        return Response(f"{task.id}/{self.reference}", str(text)) if text else None


async def compare(pair: Scorer, task: Task, a: Response, b: Response) -> list[Reward]:
    """Two rewards of a pair scorer, whose values must be v and -v."""
    first, second = await checked(pair, task, [a, b])
    if first.value is None or second.value is None:
        opposite = first.value is second.value
    else:
        opposite = abs(first.value + second.value) <= 1e-9
    if not opposite:
        raise RewardError(
            f"pair reward '{pair.name}' gave {first.value} and {second.value} to samples {a.id} "
            f"and {b.id}; expected v and -v, or no value for both."
        )
    return [first, second]


def _need_pair(what: str, scorer: Scorer) -> None:
    if scorer.scope is not Scope.PAIR:
        raise UserError(
            f"{what} got '{scorer.name}' of scope {scorer.scope.value}; expected a pair scorer."
        )
