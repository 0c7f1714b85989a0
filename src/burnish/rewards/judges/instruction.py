"""A grading instruction that improves itself on labelled records (PIAR, in AFRL, arXiv 2602.10006).

    result = await evolve_instruction(text, pool, held_out, grade=grade, propose=propose)
    result.instruction, result.log

In each round a grader follows the instruction on a pool, a proposer sees where it disagrees with
the labels and proposes edits, and an edit is kept where it helps on records that neither saw. The
paper's loop was not readable in detail; the acceptance rule is ours: macro accuracy must rise by a
margin, so that common grades cannot hide rare ones, and no rule may fall by more than one point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from burnish.arguments import same_length
from burnish.boundary import Count, NonNegative, Positive, PositiveInt, public
from burnish.errors import UserError
from burnish.rewards.scorer import gather

C = TypeVar("C")
E = TypeVar("E")
S = TypeVar("S")


class Tried(NamedTuple, Generic[C, S]):
    record: S | None
    """For the log; None where it was tried before."""
    child: C | None = None
    """The changed candidate, where it is accepted."""


@dataclass
class Improved(Generic[C, S]):
    """The candidates at the end, and the whole way to them."""

    beam: list[C]
    log: list[S] = field(default_factory=list)
    rounds: int = 0
    idle: int = 0
    """Rounds in a row without an accepted edit."""
    is_done: bool = False
    """True where nothing was left to improve."""


async def improve(
    start: C,
    propose: Callable[[C, int, int], Awaitable[Sequence[E] | None]],
    attempt: Callable[[C, E, int], Awaitable[Tried[C, S]]],
    *,
    rounds: int,
    patience: int,
    choose: Callable[[list[C], int], Awaitable[list[C]]] | None = None,
) -> Improved[C, S]:
    """Try the edits of every candidate until `patience` rounds in a row brought nothing.

    `propose(candidate, round, place)` gives edits, or None where nothing is left to improve. With
    `choose` it picks the next beam of all candidates and accepted children; without, an accepted
    child takes its parent's place at once, so that each edit is tried on what those before it left.
    """
    found = Improved[C, S]([start])
    while found.rounds < rounds and found.idle < patience:
        children: list[C] = []
        for place, parent in enumerate(list(found.beam)):
            edits = await propose(parent, found.rounds + 1, place)
            if edits is None:
                found.is_done = True
                return found
            for edit in edits:
                tried = await attempt(parent, edit, found.rounds + 1)
                found.log += [] if tried.record is None else [tried.record]
                if tried.child is not None:
                    children.append(tried.child)
                    if choose is None:
                        parent = found.beam[place] = tried.child
        found.rounds += 1
        found.idle = 0 if children else found.idle + 1
        if choose is not None:
            found.beam = await choose(found.beam + children, found.rounds)
    return found


Grade = int | str


class Labelled(Struct, frozen=True, omit_defaults=True):
    id: str
    grade: Grade
    content: dict[str, Any] = msgspec.field(default_factory=dict)
    """What a grader sees: query, document and the like."""
    rules: tuple[str, ...] = ()
    """Rules of the instruction that decide this record."""


class Disagreement(Struct, frozen=True):
    """A record that was graded otherwise than its label says; None: no grade could be read."""

    record: Labelled
    predicted: Grade | None


class Edit(Struct, frozen=True, omit_defaults=True):
    kind: Literal["add", "sharpen", "merge", "delete"]
    new: str = ""
    """What is written: behind everything (`add`), or in the place of the first of `old`."""
    old: tuple[str, ...] = ()
    """Pieces that are taken away; each must stand in the instruction once."""
    cases: tuple[str, ...] = ()
    """Records that this is to put right, by id."""
    reason: str = ""

    def applied_to(self, instruction: str) -> str:
        """The changed instruction; a `ValueError` says why there is none."""
        counts = {"add": (0, 0), "sharpen": (1, 1), "merge": (2, 99), "delete": (1, 99)}
        least, most = counts[self.kind]
        if not least <= len(self.old) <= most or bool(self.new.strip()) == (self.kind == "delete"):
            raise ValueError(
                f"a '{self.kind}' with {len(self.old)} old pieces and new text {self.new[:40]!r}; "
                "expected add: new; sharpen: one old, new; merge: two old or more, new; delete: old"
            )
        if self.kind == "add":
            return f"{instruction.rstrip()}\n{self.new.strip()}\n"
        changed = instruction
        for place, piece in enumerate(self.old):
            count = changed.count(piece) if piece else 0
            if count != 1:
                raise ValueError(
                    f"{piece[:60]!r} stands {count} times in the instruction, not once"
                )
            changed = changed.replace(piece, "" if place else self.new)
        return changed


class Accuracy(Struct, frozen=True):
    macro: float
    """Mean over grades of the share of their records that is graded right."""
    overall: float
    by_grade: dict[str, float]
    by_rule: dict[str, float]
    undecided: int
    """Records without a readable grade; they count as not right."""


@public
def accuracy_of(
    records: Annotated[Sequence[Labelled], Meta(min_length=1)], predicted: Sequence[Grade | None]
) -> Accuracy:
    """Accuracy over all records, each grade and each rule; grades are compared as texts."""
    same_length("predicted", predicted, len(records), "records")
    grades: dict[str, list[bool]] = {}
    rules: dict[str, list[bool]] = {}
    for record, found in zip(records, predicted, strict=True):
        grades.setdefault(str(record.grade), []).append(is_grade(found, record))
        for rule in dict.fromkeys(record.rules):
            rules.setdefault(rule, []).append(is_grade(found, record))
    marks = [mark for of_grade in grades.values() for mark in of_grade]
    by_grade = {name: sum(found) / len(found) for name, found in sorted(grades.items())}
    return Accuracy(
        macro=sum(by_grade.values()) / len(by_grade),
        overall=sum(marks) / len(marks),
        by_grade=by_grade,
        by_rule={name: sum(found) / len(found) for name, found in sorted(rules.items())},
        undecided=sum(found is None for found in predicted),
    )


@public
def by_rule(disagreements: Sequence[Disagreement]) -> dict[str, list[Disagreement]]:
    """Disagreements under each rule they touch, the largest cluster first; "" where none is named."""
    clusters: dict[str, list[Disagreement]] = {}
    for one in disagreements:
        for rule in dict.fromkeys(one.record.rules or ("",)):
            clusters.setdefault(rule, []).append(one)
    return dict(sorted(clusters.items(), key=lambda item: (-len(item[1]), item[0])))


def is_grade(found: Grade | None, record: Labelled) -> bool:
    return found is not None and str(found) == str(record.grade)


Grader = Callable[[str, Labelled], Awaitable[Grade | None]]
"""The grade that an instruction gives a record; None where none could be read."""
Proposer = Callable[[str, Mapping[str, Sequence[Disagreement]]], Awaitable[Sequence[Edit]]]
"""Edits for an instruction, from its disagreements with the labels by rule."""


class Change(Struct, frozen=True, omit_defaults=True):
    round: int
    edit: Edit
    accepted: bool
    reason: str
    before: Accuracy
    """On the held-out records, as `after`."""
    after: Accuracy | None = None
    """None where the edit could not be applied."""
    fixed: tuple[str, ...] = ()
    """Those of the edit's cases that its instruction grades right."""


class Evolution(Struct, frozen=True):
    instruction: str
    before: Accuracy
    after: Accuracy
    """Both on the held-out records."""
    rounds: int
    stopped: str
    log: tuple[Change, ...]


@public
async def evolve_instruction(
    instruction: str,
    pool: Sequence[Labelled],
    held_out: Sequence[Labelled],
    *,
    grade: Grader,
    propose: Proposer,
    margin: Positive = 0.005,
    max_fall: NonNegative = 0.01,
    patience: PositiveInt = 3,
    max_rounds: Count = 50,
    limit: PositiveInt = 8,
) -> Evolution:
    """Improve an instruction until `patience` rounds in a row brought nothing.

    An edit is accepted where macro accuracy on `held_out` rises by at least `margin` and no rule's
    accuracy falls by more than `max_fall`; each is tried on what the ones before it left. `limit`
    records are graded at a time.
    """
    check_apart(pool, held_out)
    trial = _Trial(pool, held_out, grade, margin, max_fall, limit)
    start = _Graded(instruction, await trial.accuracy(instruction))

    async def edits(now: _Graded, number: int, place: int) -> Sequence[Edit] | None:
        wrong = await trial.disagreements(now.instruction)
        return await propose(now.instruction, by_rule.plain(wrong)) if wrong else None

    found = await improve(start, edits, trial.of, rounds=max_rounds, patience=patience)
    stopped = f"{max_rounds} rounds were done"
    if found.is_done:
        stopped = "the pool is graded as its labels say"
    elif found.idle >= patience:
        stopped = f"{patience} rounds without an accepted edit"
    (now,) = found.beam
    log = tuple(found.log)
    return Evolution(now.instruction, start.accuracy, now.accuracy, found.rounds, stopped, log)


class _Graded(NamedTuple):
    instruction: str
    accuracy: Accuracy


@dataclass
class _Trial:
    """Tries edits on records; each record is graded once for every instruction."""

    pool: Sequence[Labelled]
    held_out: Sequence[Labelled]
    grade: Grader
    margin: float
    max_fall: float
    limit: int
    known: dict[tuple[str, str], Grade | None] = field(default_factory=dict)
    """By instruction and record id: proposers come back to edits that were refused."""

    async def of(self, now: _Graded, edit: Edit, number: int) -> Tried[_Graded, Change]:
        before = now.accuracy
        try:
            changed = edit.applied_to(now.instruction)
        except ValueError as error:
            return Tried(Change(number, edit, False, f"not applied: {error}", before))
        after = await self.accuracy(changed)
        cases = [record for record in self.pool if record.id in edit.cases]
        grades = await self._grades(changed, cases)
        fixed = tuple(r.id for r, g in zip(cases, grades, strict=True) if is_grade(g, r))
        objection = self._objection(before, after)
        reason = objection or f"macro accuracy {before.macro:.4f} -> {after.macro:.4f}"
        change = Change(number, edit, not objection, reason, before, after, fixed)
        return Tried(change, None if objection else _Graded(changed, after))

    async def accuracy(self, instruction: str) -> Accuracy:
        return accuracy_of.plain(self.held_out, await self._grades(instruction, self.held_out))

    async def disagreements(self, instruction: str) -> list[Disagreement]:
        found = await self._grades(instruction, self.pool)
        pairs = zip(self.pool, found, strict=True)
        return [Disagreement(record, g) for record, g in pairs if not is_grade(g, record)]

    async def _grades(self, instruction: str, records: Sequence[Labelled]) -> list[Grade | None]:
        asked = [r for r in records if (instruction, r.id) not in self.known]
        calls = [partial(self.grade, instruction, record) for record in asked]
        found = await gather(calls, limit=self.limit) if calls else []
        for record, value in zip(asked, found, strict=True):
            self.known[instruction, record.id] = value
        return [self.known[instruction, record.id] for record in records]

    def _objection(self, before: Accuracy, after: Accuracy) -> str:
        """Why an edit is not accepted, or nothing."""
        rise = after.macro - before.macro
        # A rise of exactly the margin is enough, whatever the two are in binary.
        if rise < self.margin - 1e-12:
            return f"macro accuracy changes by {rise:+.4f}; expected at least {self.margin:+.4f}"
        falls = {rule: share - after.by_rule[rule] for rule, share in before.by_rule.items()}
        worst = max(falls, key=lambda rule: falls[rule], default="")
        # A fall of exactly one point is allowed, whatever 0.99 - 0.98 is in binary.
        if not falls or falls[worst] <= self.max_fall + 1e-9:
            return ""
        return (
            f"accuracy of rule '{worst}' falls by {falls[worst]:.4f}; expected at most "
            f"{self.max_fall:.4f}"
        )


def check_apart(search: Sequence[Any], decide: Sequence[Any]) -> None:
    """Refuse records without ids of their own, and ones that are searched on and decided on."""
    ids = [one.id for one in (*search, *decide)]
    if not search or not decide or len(set(ids)) < len(ids):
        twice = next((one for one in ids if ids.count(one) > 1), "none")
        raise UserError(
            f"got {len(search)} records to be searched on and {len(decide)} to be decided on, with an "
            f"id that stands twice: {twice}; expected some of each, every one with an id of its own and "
            "in one of the two, or edits are judged on what they were made for."
        )
