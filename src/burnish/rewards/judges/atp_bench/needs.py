"""Where a picture was needed, as the data says: an oracle in the place of judges (ATP-Bench).

A need names a place (words of the answer), a tool or several that fit, and what the arguments must hold.
A call meets it where it stands in the part of the text that begins with those words and ends at the next
known place. Each need is met once, and as many as can be are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.errors import UserError
from burnish.records import Evidence, Task, Visibility
from burnish.rewards.checks.tool_call import same
from burnish.rewards.judges.atp_bench.three_roles import Case, Gap, Item, Mark, RoleReply

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


Needs = Annotated[list[Need], msgspec.Meta(max_length=MOST_NEEDS)]


class Met(NamedTuple):
    pairs: dict[int, int]
    """The item's place by the need's."""
    reasons: list[str]
    """Why each item is right or wrong, in order."""


def read_needs(given: Any, where: str = "needs") -> list[Need]:
    """Needs from a list of tables or their JSON text; one line where they cannot be read."""
    try:
        if isinstance(given, str):
            given = msgspec.json.decode(given)
        return msgspec.convert(given, Needs)
    except msgspec.DecodeError as error:
        said = str(error).replace("`", "'")
        raise UserError(
            f"{where}: {said}; expected a list of tables with intent, tool, and where, args or words."
        ) from None


def met_needs(
    text: str, items: Sequence[Item], needs: Sequence[Need], sections: Sequence[str] = ()
) -> Met:
    """Which valid item meets which need; `sections` are further places, which end one."""
    starts = _starts(text, [*(need.where for need in needs), *sections])
    places = sorted(set(starts.values()))
    valid = [n for n, item in enumerate(items) if item.valid]
    # The part of the text that a character stands in; 0 before the first place.
    part = {n: bisect_right(places, items[n].start) for n in valid}
    # The part that a need is about; None: any, -1: it is not in the text.
    known: dict[str, int | None] = {w: bisect_right(places, at) for w, at in starts.items()}
    parts = [known.get(need.where, -1) if need.where else None for need in needs]
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

    def __init__(self, field: str) -> None:
        self.field = field

    def needs_of(self, task: Task) -> list[Need]:
        return read_needs(task.fields.get(self.field), f"task {task.id}: field '{self.field}'")

    def met(self, case: Case) -> tuple[list[Need], Met]:
        needs = self.needs_of(case.task)
        given = case.task.fields.get(SECTIONS) or ()
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
    """The text without case and of the same length, so that places in it are places in the text: `ß` and
    a few others stay."""
    whole = text.casefold()
    if len(whole) == len(text):
        return whole
    forms = ((c.casefold(), c.lower(), c) for c in text)
    return "".join(next(one for one in own if len(one) == 1) for own in forms)


def _problem(item: Item, need: Need) -> str:
    """Why an item does not serve a need at its place; empty where it does."""
    if item.kind not in need.tools:
        return "wrong tool"
    args = item.value if isinstance(item.value, Mapping) else {}
    said = " ".join(str(value) for value in args.values()).casefold()
    is_right = all(key in args and same(args[key], value) for key, value in need.args.items())
    has_words = not need.words or any(word.casefold() in said for word in need.words)
    return "" if is_right and has_words else "wrong arguments"


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
