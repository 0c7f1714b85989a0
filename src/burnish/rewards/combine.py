"""Scorers made of scorers: a weighted sum, a gate, a fallback (pairs: see pair_scorers.py).

Every combination calls its parts through the gate, keeps what each of them said in `parts`, and
never turns a part that failed into a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Literal, Self

from msgspec.structs import replace

from burnish.errors import RewardError, UserError, did_you_mean
from burnish.records import Response, Reward, Task
from burnish.rewards.fingerprint import fingerprint
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.seeds import digest


class Combination:
    """Base: the parts, and what follows from them."""

    def __init__(self, name: str, children: Sequence[Scorer], scope: Scope, *settings: Any) -> None:
        self.name = name
        self.children = tuple(children)
        self.scope = scope
        self.needs: frozenset[str] = frozenset().union(*(child.needs for child in children))
        self._settings = settings

    @property
    def fingerprint(self) -> str:
        """Changes with any part and with the way they are combined."""
        parts = [fingerprint(child) for child in self.children]
        return digest(type(self).__name__, repr(self._settings), *parts)


class Weighted(Combination):
    """The weighted sum of named parts; parts of weight 0 are scored and kept, but do not count.

    A part without a value leaves the total without one (`missing="fail"`, with the first such
    part's status and name), or is left out, the rest scaled up to the same total weight
    (`missing="drop"`).
    """

    def __init__(
        self,
        scorers: Sequence[Scorer],
        *,
        weights: Mapping[str, float] | None = None,
        name: str = "total",
        missing: Literal["fail", "drop"] = "fail",
    ) -> None:
        """`weights` by part name; by default each scorer's own `weight`, else 1."""
        _same_kind(name, scorers)
        names = [scorer.name for scorer in scorers]
        twice = sorted({part for part in names if names.count(part) > 1})
        if twice or not names:
            got = f"two rewards named {', '.join(twice)}" if twice else "no reward at all"
            raise UserError(f"reward '{name}' has {got}; expected parts with different names.")
        unknown = sorted((weights or {}).keys() - set(names))
        if unknown:
            raise UserError(
                f"reward '{name}' has a weight for '{unknown[0]}', which is none of its parts: "
                f"{', '.join(names)}.{did_you_mean(unknown[0], names)}"
            )
        self.weights = [
            float((weights or {}).get(s.name, getattr(s, "weight", 1.0))) for s in scorers
        ]
        bad = [
            n for n, weight in zip(names, self.weights, strict=True) if not math.isfinite(weight)
        ]
        if bad:
            raise UserError(f"reward '{bad[0]}' has a weight that is not a finite number.")
        if not any(self.weights):
            raise UserError(f"reward '{name}': every part has weight 0, so there is no total.")
        self.missing = missing
        self._names = names
        super().__init__(name, scorers, _joint_scope(scorers), names, self.weights, missing)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        calls = [partial(checked, child, task, responses) for child in self.children]
        columns = await gather(calls)
        return [self._total(parts) for parts in zip(*columns, strict=True)]

    def _total(self, parts: tuple[Reward, ...]) -> Reward:
        parts = tuple(
            [
                part
                if part.weight == weight and part.name == name
                else replace(part, name=name, weight=weight)
                for part, name, weight in zip(parts, self._names, self.weights, strict=True)
            ]
        )
        counting = [part for part in parts if part.weight != 0]
        decided = [(part.weight, part.value) for part in counting if part.value is not None]
        undecided = [part for part in counting if part.value is None]
        if undecided and (self.missing == "fail" or not decided):
            reason = f"part '{undecided[0].name}' has no value: {undecided[0].reason}"
            return Reward.failed(self.name, undecided[0].status, reason, parts=parts)
        # One after the other, as the advantages add: `sum` rounds otherwise in newer Pythons.
        total = 0.0
        for weight, value in decided:
            total += weight * value
        if undecided:
            all_weight = sum(abs(part.weight) for part in counting)
            total *= all_weight / sum(abs(weight) for weight, _ in decided)
        if not math.isfinite(total):
            raise RewardError(f"reward '{self.name}' adds up to {total}; expected a finite number.")
        reason = f"left out: {', '.join(part.name for part in undecided)}" if undecided else ""
        return Reward(self.name, total, parts=parts, reason=reason)


class Gate(Combination):
    """`then`, but only for responses that pass `hard`; the others get `otherwise`.

    A point scorer `then` is not asked about the others; one that compares sees the whole group.

    No value from `hard` is no value: a gate that cannot be read is neither open nor shut.
    """

    def __init__(
        self,
        hard: Scorer,
        then: Scorer,
        *,
        threshold: float = 1.0,
        otherwise: float = 0.0,
        name: str = "gate",
    ) -> None:
        for part in (hard, then):
            if part.scope is Scope.PAIR:
                raise UserError(f"gate '{name}' got the pair reward '{part.name}'; use Anchor.")
            weight = getattr(part, "weight", 1.0)
            if weight != 1:
                raise UserError(
                    f"gate '{name}': its part '{part.name}' has weight {weight:g}, which would not "
                    "count; expected 1. Give the weight to the gate."
                )
        for setting, number in (("threshold", threshold), ("otherwise", otherwise)):
            if not math.isfinite(number):
                raise UserError(f"gate '{name}': {setting} is {number}; expected a finite number.")
        self.hard, self.then, self.threshold, self.otherwise = hard, then, threshold, otherwise
        super().__init__(name, (hard, then), _joint_scope((hard, then)), threshold, otherwise)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        gates = await checked(self.hard, task, responses)
        passed = [
            i for i, g in enumerate(gates) if g.value is not None and g.value >= self.threshold
        ]
        # Only a point scorer may see a part of the group: others compare within it.
        shown = passed if self.then.scope is Scope.POINT else list(range(len(responses)))
        asked = await checked(self.then, task, [responses[i] for i in shown]) if passed else []
        after = dict(zip(shown, asked, strict=True)) if passed else {}
        return [self._one(gate, after[i] if i in passed else None) for i, gate in enumerate(gates)]

    def _one(self, gate: Reward, after: Reward | None) -> Reward:
        if gate.value is None:
            reason = f"gate '{gate.name}' has no value: {gate.reason}"
            return Reward.failed(self.name, gate.status, reason, parts=(gate,))
        if after is None:
            reason = f"gate '{gate.name}' is {gate.value:g}, below {self.threshold:g}"
            return Reward(self.name, self.otherwise, parts=(gate,), reason=reason)
        return adopt(self.name, after, (gate, after))


class Voting(Combination):
    """Base of combinations that may be asked for several votes on the same responses."""

    def for_vote(self, vote: int) -> Self:
        """The same combination, asked once more; parts without votes say what they said."""
        other = copy(self)
        other.children = tuple(next_vote(child, vote) for child in self.children)
        return other


class FirstDecisive(Voting):
    """The first scorer that has a value decides; the next is asked only about what is open."""

    def __init__(self, *scorers: Scorer, name: str = "first_decisive") -> None:
        if not scorers:
            raise UserError(f"reward '{name}' has no scorers; expected at least one.")
        _same_kind(name, scorers)
        super().__init__(name, scorers, _joint_scope(scorers))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        said: list[list[Reward]] = [[] for _ in responses]
        for child in self.children:
            open_ones = [i for i, rewards in enumerate(said) if not _has_value(rewards)]
            if not open_ones:
                break
            # Only a point scorer may see a part of the group: others compare within it.
            shown = open_ones if child.scope is Scope.POINT else range(len(responses))
            rewards = await checked(child, task, [responses[i] for i in shown])
            for i, reward in zip(shown, rewards, strict=True):
                if i in open_ones:
                    said[i].append(reward)
        return [adopt(self.name, rewards[-1], tuple(rewards)) for rewards in said]


class ForRoles(Combination):
    """A scorer of some roles of a rollout alone; responses of the other roles get 0.

    A response whose role nobody named (`policy`) is always scored.
    """

    def __init__(self, scorer: Scorer, roles: Sequence[str]) -> None:
        super().__init__(scorer.name, (scorer,), scorer.scope, *roles)
        self.roles = frozenset((*roles, "policy"))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        meant = [response for response in responses if response.role in self.roles]
        scored = iter(await checked(self.children[0], task, meant) if meant else [])
        return [
            next(scored)
            if response.role in self.roles
            else Reward(self.name, 0.0, reason=f"not for the role '{response.role}'")
            for response in responses
        ]


def can_vote(scorer: Scorer) -> bool:
    """Whether a second vote of the scorer may differ from its first."""
    children: Sequence[Scorer] = getattr(scorer, "children", ())
    return hasattr(scorer, "for_vote") and (not children or any(map(can_vote, children)))


def next_vote(scorer: Scorer, vote: int) -> Scorer:
    """The scorer as that voter; one that has no votes, such as a check, stays as it is."""
    for_vote: Callable[[int], Scorer] | None = getattr(scorer, "for_vote", None)
    return scorer if for_vote is None else for_vote(vote)


def adopt(name: str, source: Reward, parts: tuple[Reward, ...]) -> Reward:
    """The source's value, status and reason under another name, with the parts asked."""
    return Reward(name, source.value, source.status, parts=parts, reason=source.reason)


def _has_value(rewards: list[Reward]) -> bool:
    return bool(rewards) and rewards[-1].value is not None


def _joint_scope(scorers: Sequence[Scorer]) -> Scope:
    scopes = {scorer.scope for scorer in scorers}
    return scopes.pop() if len(scopes) == 1 else Scope.GROUP


def _same_kind(name: str, scorers: Sequence[Scorer]) -> None:
    pairs = [scorer.name for scorer in scorers if scorer.scope is Scope.PAIR]
    if pairs and len(pairs) < len(scorers):
        raise UserError(
            f"reward '{name}' mixes the pair reward(s) {', '.join(pairs)} with others; "
            "make them pointwise with Anchor first."
        )
