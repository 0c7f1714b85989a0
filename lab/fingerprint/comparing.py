"""Two fingerprints side by side: every name that differs, and the first cause among them.

Within a name the entries stand in the order of cause and effect, so its first difference is named.
Among names a function comes before what is made of it, then the earliest stage of the flow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lab.fingerprint.flow import Entry

Fingerprint = Mapping[str, Mapping[str, Sequence[Entry]]]
"""Entries by part and name."""
PARTS = ("functions", "scorers", "judges", "recipes")
STAGES = ("prompts", "tokens", "log-probs", "verdicts", "rewards", "advantages", "losses")
"""In the order in which one causes the next."""
NEAR = 1e-4
SHOWN = 60


class Difference(NamedTuple):
    """The first entry of a name that differs."""

    part: str
    name: str
    at: str
    what: str

    @property
    def rank(self) -> tuple[int, int, str]:
        """Causes before effects."""
        stage = next((n for n, word in enumerate(STAGES) if word in self.at), len(STAGES))
        return PARTS.index(self.part), stage, self.name

    def __str__(self) -> str:
        return f"{self.part.removesuffix('s')} {self.name}, {self.at}: {self.what}"


def differences(before: Fingerprint, after: Fingerprint, bits: bool = True) -> list[Difference]:
    """The first difference of every name, causes before effects; to the bit on one machine."""
    found = []
    for part in PARTS:
        old, new = before.get(part, {}), after.get(part, {})
        for name in sorted({*old, *new}):
            if name not in old or name not in new:
                found.append(Difference(part, name, "runs", "new" if name in new else "gone"))
            elif (first := _first(old[name], new[name], bits)) is not None:
                found.append(Difference(part, name, *first))
    return sorted(found, key=lambda one: one.rank)


def _first(before: Sequence[Entry], after: Sequence[Entry], bits: bool) -> tuple[str, str] | None:
    places = {one["at"]: one for one in before}
    for new in after:
        old = places.pop(new["at"], None)
        what = "is new" if old is None else _difference(old, new, bits)
        if what:
            return new["at"], what
    return next(((at, "is gone") for at in places), None)


def _difference(old: Entry, new: Entry, bits: bool) -> str:
    if what := _exact(old.get("exact"), new.get("exact")):
        return what
    was, now = old.get("near", {}), new.get("near", {})
    for name in sorted({*was, *now}):
        if name not in was or name not in now:
            return f"{name} is {'new' if name in now else 'gone'}"
        if not math.isclose(was[name], now[name], rel_tol=NEAR, abs_tol=1e-6):
            return f"{name} was {was[name]:g}, is {now[name]:g}"
    if bits and old.get("bits") != new.get("bits"):
        return "the same to 1e-4, but not to the bit"
    return ""


def _exact(old: Any, new: Any, place: str = "") -> str:
    """Where two values differ first."""
    if old == new:
        return ""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return next(w for n, (a, b) in pairs if (w := _exact(a, b, f"{place}[{n}]")))
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return next(w for key in old if (w := _exact(old[key], new[key], f"{place}.{key}")))
    return f"{place} was {_short(old)}, is {_short(new)}".strip()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def report(found: Sequence[Difference]) -> str:
    """Every difference on a line, the first cause on top."""
    if not found:
        return "equal"
    lines = "\n".join(f"  {one}" for one in found)
    return f"first cause: {found[0]}\n{len(found)} differ:\n{lines}"
