"""Where the sections and the steps of an answer stand: one rule for rewards and for token credit.

A heading such as `rule:` begins a section where it begins a line (blanks before it are allowed); a
heading in angle brackets such as `<rule>` does so anywhere and ends at `</rule>`. Every section
ends where the next heading begins, at the latest. A heading that is written again begins
nothing that counts: what follows it belongs to no section.

Steps cover the whole text: what separates two of them belongs to the first. Parts without a character to
read are no step of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from burnish.boundary import public
from burnish.errors import UserError


class Section(NamedTuple):
    start: int
    """First character of its heading."""
    body: int
    """First character behind its heading."""
    end: int
    """First character behind it, a closing tag included."""
    body_end: int
    """First character behind its content."""


def find_sections(text: str, headings: Sequence[str]) -> list[Section | None]:
    """The section of each heading, in the order of the headings; None where it is missing."""
    marks = _marks(text, headings)
    found: dict[str, Section] = {}
    borders = [*(mark.start for mark in marks[1:]), len(text)][: len(marks)]
    for (heading, start, body), border in zip(marks, borders, strict=True):
        if heading in found:
            continue
        end = body_end = border
        if _is_tag(heading):
            closing = f"</{heading[1:]}"
            place = text.find(closing, body, border)
            if place >= 0:
                body_end, end = place, place + len(closing)
        found[heading] = Section(start, body, end, body_end)
    return [found.get(heading) for heading in headings]


def repeated(text: str, headings: Sequence[str]) -> set[str]:
    written = Counter(mark.heading for mark in _marks(text, headings))
    return {heading for heading, count in written.items() if count > 1}


def is_closed(text: str, section: Section, heading: str) -> bool:
    """False for a tag without its closing one; other headings need none."""
    return not _is_tag(heading) or text.startswith("</", section.body_end)


def check_headings(headings: Sequence[str]) -> None:
    is_plain = all(one and one == one.strip() and "\n" not in one for one in headings)
    if not is_plain or len(set(headings)) < len(headings):
        raise UserError(
            f"headings: got {', '.join(map(repr, headings))}, expected different ones, each of one line "
            "without blanks around it, such as 'rule:' or '<rule>'"
        )


def _is_tag(heading: str) -> bool:
    return heading.startswith("<") and heading.endswith(">")


class _Mark(NamedTuple):
    heading: str
    start: int
    end: int


def _marks(text: str, headings: Sequence[str]) -> list[_Mark]:
    matches = _pattern(tuple(headings)).finditer(text)
    groups = [(match, match.lastindex or 0) for match in matches]
    return [_Mark(match[group], *match.span(group)) for match, group in groups]


@lru_cache(maxsize=64)
def _pattern(headings: tuple[str, ...]) -> re.Pattern[str]:
    """A tag as group 1, or any other heading at the start of a line as group 2."""
    check_headings(headings)
    # Longer ones first: `rule:` would hide `rule: id`.
    longest = sorted(headings, key=len, reverse=True)
    tags = "|".join(re.escape(h) for h in longest if _is_tag(h)) or "(?!)"
    lines = "|".join(re.escape(h) for h in longest if not _is_tag(h)) or "(?!)"
    return re.compile(f"({tags})|^[ \\t]*({lines})", re.MULTILINE)


# --- steps


Split = Literal["blank_lines", "lines", "headings"]
_BORDERS = {
    "blank_lines": re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+"),
    "lines": re.compile(r"\n\s*"),
}


class Step(NamedTuple):
    start: int
    end: int
    """First character behind it, and behind what separates it from the next one."""


@public
def find_steps(text: str, split: Split = "blank_lines", headings: Sequence[str] = ()) -> list[Step]:
    """The steps of a text: cut at blank lines, at every line, or where a heading begins.

    A heading that is written again begins a step again. Text before the first heading belongs to
    the first step. An empty text has no steps.
    """
    check_split(split, headings)
    if split == "headings":
        borders = [mark.start for mark in _marks(text, headings)][1:]
    else:
        borders = [match.end() for match in _BORDERS[split].finditer(text)]
    steps: list[Step] = []
    start = 0
    for border in [*borders, len(text)]:
        if text[start:border].strip():
            steps.append(Step(start, border))
            start = border
    if steps:
        steps[-1] = Step(steps[-1].start, len(text))
    return steps


def check_split(split: str, headings: Sequence[str]) -> None:
    """Refuse headings where none are looked for, and none where they are."""
    if (split == "headings") != bool(headings):
        raise UserError(
            f"split: got {split!r} with {len(headings)} headings, expected headings with 'headings' alone"
        )
    check_headings(headings)
