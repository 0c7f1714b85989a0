"""Make the targets of an edit match the file exactly: by likeness first, by a model only if needed.

anchored(edit, text)        # the edit with exact targets; None where nothing is near enough
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from burnish.agents.trace2skill.edits import headings, plain_words, section_bounds
from burnish.agents.trace2skill.guards import Edit, span_of

NEAR = 0.85
"""Likeness (difflib ratio) from which on a place is the one that is meant."""
_TARGETS = {
    "replace_in_section": "old_text",
    "insert_after": "target_text",
    "insert_before": "target_text",
}
AHEAD = 0.05
"""How much better than the next place it must be."""


def is_anchored(edit: Edit, text: str) -> bool:
    """Whether every target of the edit is in the text; edits of whole files need none."""
    return edit["op"] in ("create", "delete_file") or span_of(edit, text) is not None


def anchored(edit: Edit, text: str) -> Edit | None:
    """The edit with targets copied from the text, whole lines; None where one is not near enough."""
    if edit["op"] in ("create", "delete_file"):
        return edit
    lines = text.split("\n")
    found = dict(edit)
    for name in ("target_section", "after_section"):
        is_new = edit["op"] == "add_section" and name == "target_section"
        if found.get(name) and not is_new:
            heading = _heading(lines, found[name])
            if heading is None:
                return None
            found[name] = heading
    target = _TARGETS.get(edit["op"])
    if target is not None:
        section = found.get("target_section") or ""
        bounds = section_bounds(lines, section) if section else (0, len(lines))
        assert bounds is not None  # its heading was found above
        place = _passage(lines[bounds[0] : bounds[1]], found.get(target) or "")
        if place is None:
            return None
        # Lines are inserted between lines; a replacement may be a part of one.
        if target == "target_text" or not place[1]:
            found[target] = place[0]
    return found


def _heading(lines: Sequence[str], wanted: str) -> str | None:
    known = [lines[place] for place in headings(lines)]
    if any(line.strip() == wanted.strip() for line in known):
        return wanted.strip()
    same = [line for line in known if plain_words(line) == plain_words(wanted)]
    if len(same) == 1:
        return same[0].strip()
    best = _best(known, wanted)
    return None if best is None else best.strip()


def _passage(lines: Sequence[str], wanted: str) -> tuple[str, bool] | None:
    """The whole lines that hold or resemble a text, and whether they hold it exactly."""
    if not wanted.strip():
        return None
    text = "\n".join(lines)
    place = text.find(wanted)
    if place >= 0:
        first = text[:place].count("\n")
        return "\n".join(lines[first : first + wanted.count("\n") + 1]), True
    count = len(wanted.strip("\n").split("\n"))
    windows = ["\n".join(lines[i : i + count]) for i in range(len(lines) - count + 1)]
    best = _best([one for one in windows if one.strip()], wanted)
    return None if best is None else (best, False)


def _best(known: Sequence[str], wanted: str) -> str | None:
    """The one text that is near and clearly nearer than the others."""
    scored = sorted(
        ((_likeness(one, wanted), -place) for place, one in enumerate(known)), reverse=True
    )
    if not scored or scored[0][0] < NEAR:
        return None
    if len(scored) > 1 and scored[1][0] > scored[0][0] - AHEAD:
        return None
    return known[-scored[0][1]]


def _likeness(a: str, b: str) -> float:
    first, second = plain_words(a), plain_words(b)
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
