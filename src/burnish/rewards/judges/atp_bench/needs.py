"""Where a picture was needed, as the data says: an oracle in the place of judges (ATP-Bench).

    needs = read_needs([{"where": "Step 2", "intent": "show the part", "tool": "reference",
                         "args": {"image_id": 1}}])
    met_needs(text, calls, needs)         # which call meets which need

A need names a place (words of the answer), a tool or several that fit, and what the arguments must hold.
A call meets it where it stands in the part of the text that begins with those words and ends at the next
known place. Each need is met once, and as many as can be are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.arguments import as_text, as_word
from burnish.errors import UserError
from burnish.records import Evidence, Response, Task, Visibility
from burnish.rewards.checks.tool_call import (
    Call,
    Dialect,
    Unreadable,
    is_right,
    read_calls,
    read_gold,
    same,
)
from burnish.rewards.judges.atp_bench.three_roles import (
    Case,
    Gap,
    Item,
    Mark,
    RoleReply,
    ThreeRoles,
    Value,
)

MOST_NEEDS = 200
SECTIONS = "sections"
"""Task field with further places, at which none may be needed."""


class Need(Struct, frozen=True, forbid_unknown_fields=True):
    """One place at which a picture is critical."""

    intent: str
    tool: str | tuple[str, ...]
    """The tool that fits, or several of which any does."""
    where: str = ""
    """Words of the answer at which the place begins; empty: anywhere."""
    args: dict[str, Any] = {}
    """Arguments that must be equal."""
    words: tuple[str, ...] = ()
    """Words of which one must stand in the call's texts; empty: any text does."""

    @property
    def tools(self) -> tuple[str, ...]:
        return (self.tool,) if isinstance(self.tool, str) else self.tool


class Met(NamedTuple):
    pairs: dict[int, int]
    """The item's place by the need's."""
    reasons: list[str]
    """Why each item is right or wrong, in order."""


def read_needs(given: Any, where: str = "needs") -> list[Need]:
    """Needs from a list of tables or their JSON text; one line where they cannot be read.

    >>> read_needs([{"intent": "show it", "tool": "search", "where": "Step 1"}])[0].tools
    ('search',)
    """
    try:
        if isinstance(given, str):
            given = msgspec.json.decode(given)
        needs = msgspec.convert(given, list[Need], strict=True)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        said = str(error).replace("`", "'")
        raise UserError(
            f"{where}: {said}; expected a list of tables with intent, tool, and where, args or words."
        ) from None
    if len(needs) > MOST_NEEDS:
        raise UserError(f"{where}: got {len(needs)} needs; expected at most {MOST_NEEDS}.")
    return needs


def met_needs(
    text: str, items: Sequence[Item], needs: Sequence[Need], sections: Sequence[str] = ()
) -> Met:
    """Which valid item meets which need; `sections` are further places, which end one.

    >>> item = Item("search", {"query": "kite"}, 8, 20)
    >>> met_needs("Step 1: ............", [item], read_needs(
    ...     [{"intent": "a kite", "tool": "search", "where": "Step 1"}])).pairs
    {0: 0}
    """
    starts = _starts(text, [*(need.where for need in needs), *sections])
    places = sorted(set(starts.values()))
    valid = [n for n, item in enumerate(items) if item.valid]
    part = {n: _part(places, items[n].start) for n in valid}
    parts = [_own_part(need, starts, places) for need in needs]
    fits = [
        [n for n in valid if parts[row] in (None, part[n]) and not _problem(items[n], needs[row])]
        for row in range(len(needs))
    ]
    pairs = best_pairs(fits)
    right = {column: row for row, column in pairs.items()}
    reasons = [
        f"meets '{needs[right[n]].intent}'"
        if n in right
        else item.reason or _why(item, part[n], needs, parts)
        for n, item in enumerate(items)
    ]
    return Met(pairs, reasons)


class NeedsOracle:
    """Both roles from the needs of a task's field: no model is asked."""

    def __init__(self, field: str = "needs", sections: str = SECTIONS) -> None:
        self.field, self.sections = field, sections

    def needs_of(self, task: Task) -> list[Need]:
        return read_needs(task.fields.get(self.field), f"task {task.id}: field '{self.field}'")

    def met(self, case: Case) -> tuple[list[Need], Met]:
        needs = self.needs_of(case.task)
        given = case.task.fields.get(self.sections) or ()
        sections = [str(one) for one in given] if isinstance(given, list | tuple) else []
        return needs, met_needs(case.response.text, case.items, needs, sections)

    async def present(self, case: Case, number: int) -> RoleReply[Mapping[int, Mark]]:
        _, met = self.met(case)
        right = set(met.pairs.values())
        marks = {n: Mark(n in right, met.reasons[n]) for n in case.valid}
        return RoleReply(marks, evidence=(self._saw(len(right), "calls meet a need"),))

    async def missing(self, case: Case, number: int) -> RoleReply[Sequence[Gap]]:
        needs, met = self.met(case)
        gaps = [
            Gap(need.where or f"need {n + 1}", need.intent, " or ".join(need.tools), "not met")
            for n, need in enumerate(needs)
            if n not in met.pairs
        ]
        return RoleReply(gaps, evidence=(self._saw(len(needs), "needs by the data"),))

    def _saw(self, count: int, what: str) -> Evidence:
        return Evidence("intent oracle", f"{count} {what}", Visibility.ORACLE)


def _starts(text: str, places: Sequence[str]) -> dict[str, int]:
    """Where each place begins, whatever its case: as whole words first, else anywhere but inside a
    number, so that "Step 1" is not found in "Step 10"."""
    shown = folded(text)
    found = {}
    for place in dict.fromkeys(places):
        if not place:
            continue
        words = folded(place)
        for edge in r"\w", r"\d":
            before = f"(?<!{edge})" if re.match(edge, words[0]) else ""
            behind = f"(?!{edge})" if re.match(edge, words[-1]) else ""
            if at := re.search(before + re.escape(words) + behind, shown):
                found[place] = at.start()
                break
    return found


@lru_cache(maxsize=8)
def folded(text: str) -> str:
    """The text without case and of the same length, so that places in it are places in the text.

    >>> folded("Straße İ")
    'straße İ'
    """
    whole = text.casefold()
    return whole if len(whole) == len(text) else "".join(map(_folded, text))


def _folded(character: str) -> str:
    """Small letters of which one stands for one; `ß` and a few others stay."""
    found = (character.casefold(), character.lower(), character)
    return next(one for one in found if len(one) == 1)


def _part(places: Sequence[int], at: int) -> int:
    """Number of the part of the text that a character stands in; 0 before the first place."""
    return bisect_right(places, at)


def _own_part(need: Need, starts: Mapping[str, int], places: Sequence[int]) -> int | None:
    """The part of the text that a need is about; None: any, -1: it is not in the text."""
    if not need.where:
        return None
    return _part(places, starts[need.where]) if need.where in starts else -1


def _problem(item: Item, need: Need) -> str:
    """Why an item does not serve a need at its place; empty where it does."""
    if item.kind not in need.tools:
        return "wrong tool"
    args = item.value if isinstance(item.value, Mapping) else {}
    if any(key not in args or not same(args[key], value) for key, value in need.args.items()):
        return "wrong arguments"
    said = " ".join(str(value) for value in args.values()).casefold()
    if need.words and not any(word.casefold() in said for word in need.words):
        return "wrong arguments"
    return ""


def _why(item: Item, part: int, needs: Sequence[Need], parts: Sequence[int | None]) -> str:
    """Why no need is met by an item."""
    here = [need for need, own in zip(needs, parts, strict=True) if own in (None, part)]
    problems = [_problem(item, need) for need in here]
    if not here:
        elsewhere = any(not _problem(item, need) for need in needs)
        return "misplaced" if elsewhere else "not needed"
    return "needed once, there already" if "" in problems else problems[0]


def best_pairs(fits: Sequence[Sequence[int]]) -> dict[int, int]:
    """A largest pairing: `fits` lists what each row may be paired with; nothing is paired twice.

    Which rows and columns can be paired does not depend on their order, only which one is.

    >>> best_pairs([[0, 1], [0]])
    {0: 1, 1: 0}
    """
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column in fits[row]:
            if column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    for row in range(len(fits)):
        place(row, set())
    return {row: column for column, row in sorted(owner.items(), key=lambda pair: pair[1])}


def function_call_scorer(
    field: str = "answer", dialect: Dialect = "json", value: Value = "f1"
) -> ThreeRoles:
    """A scorer of the calls of a response against those that the task expects.

    >>> function_call_scorer().name
    'function_calls'
    """
    as_text("field", field), as_word("dialect", dialect, ("blocks", "json"))
    return ThreeRoles(
        "function_calls",
        parse=partial(_parse, dialect=dialect),
        present=partial(_present, field=field),
        missing=partial(_missing, field=field),
        value=value,
        needs=frozenset({field}),
        settings=f"{field} {dialect}",
    )


def _parse(task: Task, response: Response, dialect: Dialect) -> Sequence[Item]:
    try:
        calls = read_calls(response.text, dialect)
    except Unreadable as problem:
        return [Item("", response.text[:200], valid=False, reason=str(problem))]
    return [Item(call.name, call) for call in calls]


async def _present(case: Case, number: int, field: str) -> RoleReply[Mapping[int, Mark]]:
    wanted = read_gold(case.task.fields[field]).calls
    pairs = matched(wanted, [case.items[place].value for place in case.valid])
    right = {case.valid[call] for call in pairs.values()}
    names = {call.name for call in wanted}
    marks = {}
    for place in case.valid:
        known = case.items[place].kind in names
        reason = "other arguments, or once too often" if known else "not expected"
        marks[place] = Mark(place in right, "as expected" if place in right else reason)
    saw = Evidence("expected calls", f"{len(wanted)} calls", Visibility.ORACLE)
    return RoleReply(marks, evidence=(saw,))


async def _missing(case: Case, number: int, field: str) -> RoleReply[Sequence[Gap]]:
    wanted = read_gold(case.task.fields[field]).calls
    met = matched(wanted, [case.items[place].value for place in case.valid])
    # By number: the same call may be expected twice.
    return RoleReply(
        [
            Gap(f"call {number + 1}", f"{call.name}({', '.join(call.arguments)})", call.name)
            for number, call in enumerate(wanted)
            if number not in met
        ]
    )


def matched(wanted: Sequence[Call], calls: Sequence[Call]) -> dict[int, int]:
    """The most expected calls that can be met at once: place of the call by place of the expected.

    >>> matched([Call("a", {"x": 1})], [Call("b", {}), Call("a", {"x": 1})])
    {0: 1}
    """
    fits = [[n for n, call in enumerate(calls) if is_right(call, one)] for one in wanted]
    return best_pairs(fits)
