"""Keep a skill within its limits by splitting it, never by cutting text off.

files = split_long(files)        # SKILL.md up to 500 lines, references up to 300
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from burnish.agents.trace2skill.edits import front_lines, headings, section_bounds
from burnish.agents.trace2skill.skill_files import (
    BODY_LINES,
    REFERENCE_LINES,
    body_lines,
    mentioned,
)
from burnish.rewards.judges.skill_rm.package import MANUAL

ROUNDS = 200
"""Sections that are moved at most."""


def split_long(files: Mapping[str, str]) -> dict[str, str]:
    """The same text in files of the allowed sizes; long sections become references with a link."""
    found = dict(files)
    for _ in range(ROUNDS):
        long = [
            path
            for path, text in found.items()
            if path.startswith("references/") and _count(text) > REFERENCE_LINES
        ]
        if body_lines(found[MANUAL]) > BODY_LINES:
            changed = _move_section(found)
        elif long:
            changed = _split_reference(found, long[0])
        else:
            return found
        if not changed:
            return found
    return found


def _move_section(files: dict[str, str]) -> bool:
    """Move the longest section of `SKILL.md` into a reference and leave a link."""
    lines = files[MANUAL].rstrip("\n").split("\n")
    starts = headings(lines)
    sections = [
        (place, next((p for p, its in starts.items() if p > place and its <= level), len(lines)))
        for place, level in starts.items()
        if level > 1
    ]
    if not sections:
        front = front_lines(lines)
        sections = [(front + BODY_LINES // 2, len(lines))]
        lines[sections[0][0] : sections[0][0]] = ["", "## More"]
        sections = [(sections[0][0] + 1, len(lines))]
    start, end = max(sections, key=lambda span: (span[1] - span[0], -span[0]))
    if end - start <= 4:
        return False
    title = lines[start].lstrip("# ").strip() or "More"
    path = _free_name(files, _slug(title))
    body = lines[start + 1 : end]
    links = [f"- [{_title(one)}]({one})" for one in mentioned("\n".join(body))]
    files[path] = f"# {title}\n" + "\n".join(body).rstrip("\n") + "\n"
    link = f"Read [{title}]({path}) for this."
    parts = [*lines[: start + 1], "", link, *links, "", *lines[end:]]
    files[MANUAL] = "\n".join(parts).rstrip("\n") + "\n"
    return True


def _split_reference(files: dict[str, str], path: str) -> bool:
    """Cut a reference in two at a heading or a line outside of code, and link the second part."""
    lines = files[path].rstrip("\n").split("\n")
    place = _cut(lines)
    if place is None:
        return False
    second = _free_name(files, _slug(path.removeprefix("references/").removesuffix(".md")))
    files[path] = "\n".join(lines[:place]).rstrip("\n") + "\n"
    files[second] = "\n".join(lines[place:]).strip("\n") + "\n"
    manual = files[MANUAL].split("\n")
    at = next((i for i, line in enumerate(manual) if path in mentioned(line)), len(manual) - 1)
    manual.insert(at + 1, f"- [{_title(second)}]({second}), continued from {_title(path)}")
    files[MANUAL] = "\n".join(manual)
    return True


def _cut(lines: Sequence[str]) -> int | None:
    """The last heading within the limit, or the last line outside of code."""
    starts = [p for p in headings(lines) if REFERENCE_LINES // 4 < p <= REFERENCE_LINES]
    if starts:
        return starts[-1]
    for place in range(REFERENCE_LINES, 1, -1):
        # Outside of code a heading put here would be found as one.
        if section_bounds([*lines[:place], "# cut here"], "# cut here") is not None:
            return place
    return None


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "more"


def _free_name(files: Mapping[str, str], slug: str) -> str:
    names = [f"references/{slug}.md", *(f"references/{slug}-{i}.md" for i in range(2, 10_000))]
    return next(name for name in names if name not in files)


def _title(path: str) -> str:
    return path.removeprefix("references/").removesuffix(".md").replace("-", " ")


def _count(text: str) -> int:
    return len(text.rstrip("\n").split("\n"))
