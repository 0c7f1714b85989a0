"""Scorers made of scorers: a weighted sum, a gate, a fallback, both orders of a pair, an anchor.

Every combination calls its parts through the gate, keeps what each of them said in `parts`, and
never turns a part that failed into a number.

    BothOrders(pair, rule="votes")          # the place of a response cannot win
    Anchor(pair, "reference")               # one response at a time, against a field of the task
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from msgspec.structs import replace

from burnish.boundary import Call, reader
from burnish.errors import RewardError, StoreError, UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Visibility
from burnish.rewards.scorer import Scope, Scorer, checked, fingerprint, gather
from burnish.seeds import digest

logger = logging.getLogger(__name__)


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

    A part without a value leaves the total without one, with the first such part's status and name.
    """

    def __init__(
        self,
        scorers: Sequence[Scorer],
        *,
        weights: Mapping[str, float] | None = None,
        name: str = "total",
    ) -> None:
        """`weights` by part name; by default each scorer's own `weight`, else 1."""
        _same_kind(name, scorers)
        self._names = [scorer.name for scorer in scorers]
        given = weights or {}
        if given.keys() - set(self._names) or len(set(self._names)) < len(self._names):
            raise UserError(
                f"reward '{name}': got parts {', '.join(self._names)} and weights for "
                f"{', '.join(given)}; expected parts with different names (`name` of a [[rewards]] "
                "table), and weights for these alone."
            )
        self.weights = [float(given.get(s.name, getattr(s, "weight", 1.0))) for s in scorers]
        if not any(self.weights) or not all(map(math.isfinite, self.weights)):
            raise UserError(
                f"weights of reward '{name}': got {self.weights}, expected finite numbers, not all 0."
            )
        super().__init__(name, scorers, _joint_scope(scorers), self._names, self.weights)

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
        # One after the other, as the advantages add: `sum` rounds otherwise in newer Pythons.
        total = 0.0
        for part in parts:
            if part.weight == 0:
                continue
            if part.value is None:
                reason = f"part '{part.name}' has no value: {part.reason}"
                return Reward.failed(self.name, part.status, reason, parts=parts)
            total += part.weight * part.value
        if not math.isfinite(total):
            raise RewardError(f"reward '{self.name}' adds up to {total}; expected a finite number.")
        return Reward(self.name, total, parts=parts)


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
            weight = getattr(part, "weight", 1.0)
            if part.scope is Scope.PAIR or weight != 1:
                raise UserError(
                    f"gate '{name}': part '{part.name}' has scope {part.scope.value} and weight "
                    f"{weight:g}; expected no pair reward (use Anchor) and a weight of 1: the gate's "
                    "own weight counts."
                )
        self.hard, self.then = hard, then
        self.threshold, self.otherwise = threshold, otherwise
        super().__init__(name, (hard, then), _joint_scope((hard, then)), threshold, otherwise)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        gates = await checked(self.hard, task, responses)
        passed = [
            i for i, g in enumerate(gates) if g.value is not None and g.value >= self.threshold
        ]
        after = await _some(self.then, task, responses, passed) if passed else {}
        return [self._one(gate, after.get(i)) for i, gate in enumerate(gates)]

    def _one(self, gate: Reward, after: Reward | None) -> Reward:
        if gate.value is None:
            reason = f"gate '{gate.name}' has no value: {gate.reason}"
            return Reward.failed(self.name, gate.status, reason, parts=(gate,))
        if after is None:
            reason = f"gate '{gate.name}' is {gate.value:g}, below {self.threshold:g}"
            return Reward(self.name, self.otherwise, parts=(gate,), reason=reason)
        return adopt(self.name, after, (gate, after))


async def _some(
    scorer: Scorer, task: Task, responses: Sequence[Response], places: Sequence[int]
) -> dict[int, Reward]:
    """Rewards by place; a scorer that compares sees the whole group, whoever is asked about."""
    shown = places if scorer.scope is Scope.POINT else range(len(responses))
    rewards = await checked(scorer, task, [responses[i] for i in shown])
    return {i: reward for i, reward in zip(shown, rewards, strict=True) if i in places}


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
        _same_kind(name, scorers)
        super().__init__(name, scorers, _joint_scope(scorers))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        said: list[list[Reward]] = [[] for _ in responses]
        for child in self.children:
            open_ones = [i for i, one in enumerate(said) if not one or one[-1].value is None]
            if not open_ones:
                break
            for i, reward in (await _some(child, task, responses, open_ones)).items():
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


def _joint_scope(scorers: Sequence[Scorer]) -> Scope:
    scopes = {scorer.scope for scorer in scorers}
    return scopes.pop() if len(scopes) == 1 else Scope.GROUP


def _same_kind(name: str, scorers: Sequence[Scorer]) -> None:
    pairs = [scorer.name for scorer in scorers if scorer.scope is Scope.PAIR]
    if not scorers or (pairs and len(pairs) < len(scorers)):
        raise UserError(
            f"reward '{name}': got {len(pairs)} pair rewards of {len(scorers)} ({', '.join(pairs)}), "
            "expected one kind, and at least one: make pairs pointwise with Anchor first."
        )


# --- pairs: both orders, so that a place cannot win; an anchor, so that one response is scored


OrderRule = Literal["mean", "votes", "strict", "abstain"]
RULE = reader(OrderRule)


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
        self.rule: OrderRule = RULE(f"both orders of '{pair.name}': rule", rule, Call())
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
        anchor, is_field = self.reference, isinstance(self.reference, str)
        if isinstance(anchor, str):
            text = task.fields.get(anchor)
            if not text:
                reason = f"the field '{anchor}' holds no text to compare with"
                return [Reward.failed(self.name, Status.ABSTAIN, reason)] * len(responses)
            anchor = Response(f"{task.id}/{anchor}", str(text))
        pair = self.children[0]
        calls = [partial(compare, pair, task, response, anchor) for response in responses]
        rewards = [adopt(self.name, both[0], (both[0],)) for both in await gather(calls)]
        if not is_field:
            return rewards
        sight = Visibility.ORACLE if self.reference in task.labels else Visibility.BENCHMARK
        seen = Evidence(self.name, f"compared with the field '{self.reference}'", sight)
        return [replace(reward, evidence=(seen,)) for reward in rewards]


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


# --- scores that are not asked for twice


class Cached(Combination):
    """A scorer whose answers are kept under its fingerprint, the task and the response's text.

    Finish and token count are part of the key, `Response.info` is not: do not cache a scorer that
    reads it. A scorer that compares responses is kept for the whole list that it saw.
    """

    def __init__(self, scorer: Scorer, path: str | Path = ":memory:") -> None:
        super().__init__(scorer.name, (scorer,), scorer.scope)
        self._identity = fingerprint(scorer)
        self.weight: float = getattr(scorer, "weight", 1.0)
        self._told = False
        self._table = RewardTable(Path(path))

    @property
    def fingerprint(self) -> str:
        """A cache changes no score: it is the scorer's own."""
        return self._identity

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        keys = self._keys(task, responses)
        found = self._table.read(keys)
        open_keys = [key for key in dict.fromkeys(keys) if key not in found]
        if open_keys and self.scope is not Scope.POINT:
            open_keys = keys
        if open_keys:
            asked = [responses[keys.index(key)] for key in open_keys]
            rewards = await checked(self.children[0], task, asked)
            new = dict(zip(open_keys, rewards, strict=True))
            # What says something about the response; the rest says something about the moment.
            lasting = {k: r for k, r in new.items() if r.status in (Status.OK, Status.ABSTAIN)}
            try:
                self._table.write(lasting)
            except StoreError as error:
                if not self._told:
                    logger.warning("%s Scores go on without it.", error)
                self._told = True
            found |= new
        return [found[key] for key in keys]

    def _keys(self, task: Task, responses: Sequence[Response]) -> list[str]:
        content = msgspec.json.encode((task.id, task.messages, task.fields), order="deterministic")
        texts = [f"{r.finish.value} {r.tokens} {r.text}" for r in responses]
        each = [text.encode("utf-8", "surrogatepass") for text in texts]
        if self.scope is Scope.POINT:
            return [digest(self._identity, content, text) for text in each]
        together = digest(self._identity, content, *each)
        return [f"{together}/{position}" for position in range(len(each))]


class RewardTable:
    """Rewards by key in one file, shared by threads and processes, or in memory alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()  # invariant: one statement at a time on the connection
        with self._naming("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, timeout=30)
            with self._db as db:
                db.execute("PRAGMA journal_mode=WAL")
                # A power cut may lose the last rows, never the file.
                db.execute("PRAGMA synchronous=NORMAL")
                db.execute(
                    "CREATE TABLE IF NOT EXISTS rewards "
                    "(key TEXT PRIMARY KEY, reward TEXT NOT NULL)"
                )

    def read(self, keys: Sequence[str]) -> dict[str, Reward]:
        marks = ",".join("?" * len(keys))
        query = f"SELECT key, reward FROM rewards WHERE key IN ({marks})"
        with self._naming("read"):
            with self._lock:
                rows = self._db.execute(query, keys).fetchall()
            return {key: msgspec.json.decode(text, type=Reward) for key, text in rows}

    def write(self, rewards: Mapping[str, Reward]) -> None:
        rows = [(key, msgspec.json.encode(reward).decode()) for key, reward in rewards.items()]
        with self._naming("written"), self._lock, self._db as db:
            db.executemany("INSERT OR REPLACE INTO rewards VALUES (?, ?)", rows)

    @contextmanager
    def _naming(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"the reward cache {self.path} cannot be {verb}: {error}.") from error
