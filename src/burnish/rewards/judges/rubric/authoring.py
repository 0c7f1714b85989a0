"""Items and audits as models write them, read strictly.

    rubric = read_items(reply, question, points, rules)     # or Unreadable, naming each broken rule

An item rests on statements of the consensus and on nothing else: one that names no such statement
is refused, and its provenance is that of its statements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.rewards.judges.questions import Unreadable
from burnish.rewards.judges.rubric.audit import CHECKS, SAFETY
from burnish.rewards.judges.rubric.items import Point, Rubric, RubricItem, Rules
from burnish.rewards.judges.rubric.wording import read_list


def read_items(text: str, question: str, points: Sequence[Point], rules: Rules) -> Rubric:
    """The rubric in a reply; raises `Unreadable` with every rule that it breaks."""
    known = {point.id: point for point in points}
    items = tuple(_item(row, known) for row in read_list(text))
    try:
        rubric = Rubric(question, items, tuple(points))
    except UserError as error:
        raise Unreadable(str(error)) from None
    broken = rubric.validate(rules)
    if broken:
        raise Unreadable(
            f"expected a rubric that keeps the rules, got {'; '.join(map(str, broken))}"
        )
    return rubric


def read_findings(text: str) -> dict[str, bool | None]:
    """What an auditor decided, by check; raises `Unreadable` where the word on safety is missing."""
    found: dict[str, bool | None] = {}
    for row in read_list(text):
        name, holds = str(row.get("check") or ""), row.get("holds")
        if name in CHECKS or name == SAFETY:
            found[name] = holds if isinstance(holds, bool) else None
    if found.get(SAFETY) is None:
        raise Unreadable(f"expected checks and '{SAFETY}' with true or false, got {sorted(found)}")
    return found


def _item(row: Mapping[str, Any], known: Mapping[str, Point]) -> RubricItem:
    name = str(row.get("id") or "")
    named = row.get("points")
    rests_on = tuple(str(p) for p in named) if isinstance(named, list) else ()
    unknown = [point for point in rests_on if point not in known]
    if not rests_on or unknown:
        got = f"'{unknown[0]}', which is none" if unknown else "none"
        raise Unreadable(f"expected item '{name}' to rest on statements, got {got}")
    levels = row.get("description")
    if not isinstance(levels, dict):
        raise Unreadable(
            f"expected item '{name}' to describe the levels 0, 1 and 2, got {levels!r:.40}"
        )
    sources = {(s.key, s.quote): s for point in rests_on for s in known[point].provenance}
    return RubricItem(
        id=name,
        title=str(row.get("title") or ""),
        tier=str(row.get("tier") or ""),
        description={str(level): str(told) for level, told in levels.items()},
        tag=str(row.get("tag") or ""),
        provenance=tuple(sources.values()),
        points=rests_on,
    )
