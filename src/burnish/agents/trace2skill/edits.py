"""Edits of Markdown files as data, and the code that carries them out: no model takes part.

An edit is a table with `op`, `file` and what the operation needs. A target that is not there leaves
the text as it was; a position is never guessed. An edit that is already in the text is not made twice.
Headings are found outside fenced code and front matter only (the released code takes comments in code
for headings). Paper: Trace2Skill (arXiv 2603.25158); the operations are those of its code.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from burnish.arguments import as_table, refused
from burnish.boundary import Call, public

Edit = dict[str, Any]
OPERATIONS = (
    *("append_to_section", "insert_after", "insert_before", "replace_in_section"),
    *("add_section", "delete_section", "create", "delete_file"),
)
ALIASES = {"create_file": "create", "createFile": "create", "deleteFile": "delete_file"}
"""Other names that models give to an operation."""
TEXTS = ("file", "target_section", "target_text", "old_text", "after_section", "content")
KNOWN = "already there"
NO_TARGET = "its target is not in the file"
"""Why an edit that was made before is not made again."""
WRITERS = ("replace_in_section", "delete_section")
"""Operations that take lines away; the others only add."""

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]|$)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


class _AnEdit:
    words = "a table such as {'op': 'append_to_section', ...}"

    def read(self, name: str, given: Any, call: Call) -> Edit:
        return as_edit(name, given)


GivenEdit = Annotated[Edit, _AnEdit()]


class Bounds(NamedTuple):
    start: int
    end: int


class Applied(NamedTuple):
    text: str
    problem: str = ""


class Outline(NamedTuple):
    """Headings by line with their levels, and whether a code fence is never closed."""

    headings: dict[int, int]
    is_open: bool


def headings(lines: Sequence[str]) -> dict[int, int]:
    """Levels of the headings by line, outside fenced code and front matter."""
    return outline(lines).headings


def outline(lines: Sequence[str]) -> Outline:
    """The headings of a text, outside fenced code and front matter."""
    blocks, is_open = _fenced(lines)
    found = {
        place: len(heading[1])
        for place in range(front_lines(lines), len(lines))
        if not blocks[place] and (heading := _HEADING.match(lines[place])) is not None
    }
    return Outline(found, is_open)


def _fenced(lines: Sequence[str]) -> tuple[list[int], bool]:
    """Of each line the number of its block of code, 0 outside one; whether the last is left open."""
    found = [0] * len(lines)
    number, fence = 0, ""
    for place in range(front_lines(lines), len(lines)):
        mark = _FENCE.fullmatch(lines[place].rstrip("\r"))
        if fence:
            found[place] = number
            closes = mark is not None and mark[1].startswith(fence) and not mark[2].strip()
            fence = "" if closes else fence
        elif mark is not None and not (mark[1][0] == "`" and "`" in mark[2]):
            fence, number = mark[1], number + 1
            found[place] = number
    return found, bool(fence)


def code_blocks(lines: Sequence[str]) -> list[list[str]]:
    """The lines one by one, those of a block of code together."""
    found: list[list[str]] = []
    last = 0
    for line, number in zip(lines, _fenced(["", *lines])[0][1:], strict=True):
        if number and number == last:
            found[-1].append(line)
        else:
            found.append([line])
        last = number
    return found


def breaks(before: str, after: str, edit: Mapping[str, Any]) -> str:
    """What an edit would break in a file, in one line: a block of code, or headings of others."""
    old, new = before.split("\n"), after.split("\n")
    was, now = outline(old), outline(new)
    if now.is_open and not was.is_open:
        return "it would leave a block of code open"
    had = Counter(old[place].strip() for place in was.headings)
    has = Counter(new[place].strip() for place in now.headings)
    lost = had - has
    if lost and edit["op"] != "delete_section":
        return f"it would break the heading '{next(iter(lost))}'"
    own = ["", *str(edit.get("content") or "").split("\n")]
    allowed = Counter(own[place].strip() for place in outline(own).headings)
    allowed[str(edit.get("target_section") or "## New Section").strip()] += (
        edit["op"] == "add_section"
    )
    if has - had - allowed:
        return "it would make a heading of a line of code"
    return ""


def front_lines(lines: Sequence[str]) -> int:
    """How many lines the front matter takes, its two marks included; 0 where there is none."""
    if not lines or lines[0].rstrip() != "---":
        return 0
    for place in range(1, len(lines)):
        if lines[place].rstrip() == "---":
            return place + 1
    return 0


@public
def section_bounds(lines: Sequence[str], header: str) -> Bounds | None:
    """Where the section with this heading begins and ends; None where there is no such heading.

    It ends before the next heading of the same or a higher level.

    >>> section_bounds(["# A", "## B", "```", "# no heading", "```", "## C"], "## B")
    Bounds(start=1, end=5)
    """
    wanted, found = header.strip(), headings(lines)
    for place, level in found.items():
        if lines[place].strip() == wanted:
            later = (other for other, its in found.items() if other > place and its <= level)
            return Bounds(place, next(later, len(lines)))
    return None


@public
def apply_edit(text: str, edit: GivenEdit) -> str:
    """The text after one edit; the text itself where the target is not in it.

    >>> apply_edit("## Rules\\n- a\\n", {"op": "append_to_section", "target_section": "## Rules",
    ...                                "content": "- b"})
    '## Rules\\n- a\\n\\n- b\\n'
    """
    return try_edit(text, edit).text


def as_edit(what: str, edit: Any) -> dict[str, Any]:
    """The edit with its operation by the usual name; a field that is no text is refused."""
    table = as_table(what, edit, _AnEdit.words)
    left_out = [name for name in TEXTS if table.get(name) is None]
    found = {name: value for name, value in table.items() if name not in left_out}
    for name in {"op", *TEXTS}.difference(left_out):
        if not isinstance(found.get(name), str):
            raise refused(f"{what}: {name}", found.get(name), "a text")
    return found | {"op": ALIASES.get(found["op"], found["op"])}


def try_edit(text: str, edit: Mapping[str, Any]) -> Applied:
    """`apply_edit`, with the reason where nothing was changed."""
    make = _MAKERS.get(edit["op"])
    if make is None:
        return Applied(text, f"no operation '{edit['op']}' inside a file")
    return make(text, _Fields(*(edit.get(name) or "" for name in _Fields._fields)))


class _Fields(NamedTuple):
    target_section: str
    target_text: str
    old_text: str
    after_section: str
    content: str

    @property
    def begins_sections(self) -> bool:
        """Whether what was written may have ended the section that it was written into."""
        return any(line.lstrip().startswith("#") for line in self.content.split("\n"))


def _append(text: str, edit: _Fields) -> Applied:
    lines = text.split("\n")
    bounds = section_bounds.plain(lines, edit.target_section)
    if bounds is None:
        return Applied(text, f"no section '{edit.target_section}'")
    reach = len(lines) if edit.begins_sections else bounds.end
    if has_lines(lines[bounds.start + 1 : reach], edit.content):
        return Applied(text, KNOWN)
    place = bounds.end
    while place > bounds.start + 1 and not lines[place - 1].strip():
        place -= 1
    return Applied("\n".join([*lines[:place], "", *edit.content.split("\n"), *lines[place:]]))


def _replace(text: str, edit: _Fields) -> Applied:
    window = _window(text, edit.target_section)
    if window is None:
        return Applied(text, f"no section '{edit.target_section}'")
    before, inside, after = window
    if not edit.old_text or edit.old_text not in inside:
        return Applied(text, "old_text is not there")
    is_grown = edit.old_text in edit.content
    if is_grown and edit.old_text not in inside.replace(edit.content, ""):
        return Applied(text, KNOWN)
    return Applied(before + inside.replace(edit.old_text, edit.content, 1) + after)


def _insert(text: str, edit: _Fields, *, after_target: bool) -> Applied:
    window = _window(text, edit.target_section)
    if window is None:
        return Applied(text, f"no section '{edit.target_section}'")
    before, inside, after = window
    if not edit.target_text or edit.target_text not in inside:
        return Applied(text, "target_text is not there")
    pair = (edit.target_text, edit.content) if after_target else (edit.content, edit.target_text)
    joined = "\n".join(pair)
    # Others may have inserted at the same place since, so the whole section is looked at.
    known = inside + after if edit.begins_sections else inside
    if joined in known or has_lines(known.split("\n"), edit.content):
        return Applied(text, KNOWN)
    made = inside.replace(edit.target_text, joined, 1)
    heading = inside.split("\n", 1)[0]
    if edit.target_section and heading not in made.split("\n"):
        return Applied(text, f"it would break the heading '{heading}'")
    return Applied(before + made + after)


def _add_section(text: str, edit: _Fields) -> Applied:
    lines = text.split("\n")
    header = edit.target_section or "## New Section"
    known = section_bounds.plain(lines, header)
    if known is not None:  # a second one of this name would never be found again
        return _append(text, edit._replace(target_section=header))
    place = len(lines)
    if edit.after_section:
        bounds = section_bounds.plain(lines, edit.after_section)
        if bounds is None:
            return Applied(text, f"no section '{edit.after_section}'")
        place = bounds.end
    return Applied(
        "\n".join([*lines[:place], "", header, "", *edit.content.split("\n"), *lines[place:]])
    )


def _delete_section(text: str, edit: _Fields) -> Applied:
    lines = text.split("\n")
    bounds = section_bounds.plain(lines, edit.target_section)
    if bounds is None:
        return Applied(text, f"no section '{edit.target_section}'")
    start = bounds.start
    while start > 0 and not lines[start - 1].strip():
        start -= 1
    return Applied("\n".join(lines[:start] + lines[bounds.end :]))


_MAKERS: dict[str, Callable[[str, _Fields], Applied]] = {
    "append_to_section": _append,
    "replace_in_section": _replace,
    "insert_after": partial(_insert, after_target=True),
    "insert_before": partial(_insert, after_target=False),
    "add_section": _add_section,
    "delete_section": _delete_section,
}


def _window(text: str, section: str) -> tuple[str, str, str] | None:
    if not section:
        return "", text, ""
    lines = text.split("\n")
    bounds = section_bounds.plain(lines, section)
    if bounds is None:
        return None
    before = "".join(f"{line}\n" for line in lines[: bounds.start])
    inside = "\n".join(lines[bounds.start : bounds.end])
    return before, inside, "".join(f"\n{line}" for line in lines[bounds.end :])


def has_lines(lines: Sequence[str], content: str) -> bool:
    """Whether the content's lines stand among these, one after the other."""
    wanted = [line.rstrip() for line in content.strip("\n").split("\n")]
    given = [line.rstrip() for line in lines]
    return any(given[i : i + len(wanted)] == wanted for i in range(len(given) - len(wanted) + 1))


@public
def dedupe(
    edits: Sequence[GivenEdit], same: Literal["target", "content"] = "target"
) -> list[dict[str, Any]]:
    """Edits without repetitions, in the order of their first; the longest text stays.

    `same="target"`: edits with one file, operation, section and target are one, as in the released
    code. `same="content"`: only where also the words are the same, so that two different rules for
    one section both stay. `source_ids` of all of them are kept.

    >>> dedupe([{"file": "SKILL.md", "op": "add_section", "content": "a", "source_ids": ["t1"]},
    ...         {"file": "SKILL.md", "op": "add_section", "content": "aa", "source_ids": ["t2"]}])
    [{'file': 'SKILL.md', 'op': 'add_section', 'content': 'aa', 'source_ids': ['t1', 't2']}]
    """
    kept: dict[tuple[str, ...], dict[str, Any]] = {}
    for edit in edits:
        key = target_of(edit)
        if same == "content":
            key = (*key, plain_words(edit.get("content") or ""))
        first = kept.setdefault(key, edit)
        if first is edit:
            continue
        longer = edit if len(edit.get("content") or "") > len(first.get("content") or "") else first
        kept[key] = dict(longer)
        if "source_ids" in first or "source_ids" in edit:
            both = {*first.get("source_ids", ()), *edit.get("source_ids", ())}
            kept[key]["source_ids"] = sorted(both)
    return list(kept.values())


def target_of(edit: Mapping[str, Any]) -> tuple[str, ...]:
    """Where an edit works: file, operation, section, target, old text."""
    names = ("file", "op", "target_section", "target_text", "old_text")
    return tuple(str(edit.get(name) or "") for name in names)


def plain_words(text: str) -> str:
    """A text without case, punctuation and spacing: what two wordings of a rule have in common."""
    return " ".join(re.findall(r"\w+", text.casefold()))


NEAR = 0.85
"""Likeness (difflib ratio) from which on a place is the one that is meant."""
_TARGETS = {
    "replace_in_section": "old_text",
    "insert_after": "target_text",
    "insert_before": "target_text",
}
AHEAD = 0.05
"""How much better than the next place it must be."""


class Span(NamedTuple):
    """Lines of the frozen file that an edit needs or takes away."""

    start: int
    end: int
    takes: bool

    def meets(self, other: Span) -> bool:
        """Whether they share lines that one of them takes away."""
        is_over = max(self.start, other.start) < min(self.end, other.end)
        return (self.takes or other.takes) and is_over


def span_of(edit: Mapping[str, Any], text: str) -> Span | None:
    """The lines that an edit stands on in the file as it is; None where its target is missing."""
    lines = text.split("\n")
    operation = edit["op"]
    section, after = edit.get("target_section") or "", edit.get("after_section") or ""
    bounds = section_bounds.plain(lines, section) if section else None
    if operation in ("delete_section", "append_to_section"):
        takes = operation == "delete_section"
        end = bounds and (bounds.end if takes else bounds.start + 1)
        return None if bounds is None or end is None else Span(bounds.start, end, takes)
    if operation == "add_section":
        found = section_bounds.plain(lines, after) if after else Bounds(len(lines), len(lines))
        return None if found is None else Span(*found, False)
    target = edit.get("old_text") if operation == "replace_in_section" else edit.get("target_text")
    if not target or (section and bounds is None):
        return None
    first, last = bounds or (0, len(lines))
    inside = "\n".join(lines[first:last])
    place = inside.find(target)
    if place < 0:
        return None
    start = first + inside[:place].count("\n")
    return Span(start, start + target.count("\n") + 1, operation in WRITERS)


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
    if target is None:
        return found
    section, wanted = found.get("target_section") or "", found.get(target) or ""
    bounds = section_bounds.plain(lines, section) if section else (0, len(lines))
    assert bounds is not None  # its heading was found above
    inside = lines[bounds[0] : bounds[1]]
    at = "\n".join(inside).find(wanted) if wanted.strip() else -1
    if at >= 0 and target == "old_text":
        return found  # a replacement may be a part of a line
    if at >= 0:  # lines are inserted between whole lines
        first = "\n".join(inside)[:at].count("\n")
        found[target] = "\n".join(inside[first : first + wanted.count("\n") + 1])
        return found
    count = len(wanted.strip("\n").split("\n"))
    windows = ["\n".join(inside[i : i + count]) for i in range(len(inside) - count + 1)]
    near = _best([one for one in windows if one.strip()], wanted) if wanted.strip() else None
    return None if near is None else found | {target: near}


def _heading(lines: Sequence[str], wanted: str) -> str | None:
    known = [lines[place] for place in headings(lines)]
    if any(line.strip() == wanted.strip() for line in known):
        return wanted.strip()
    same = [line for line in known if plain_words(line) == plain_words(wanted)]
    if len(same) == 1:
        return same[0].strip()
    best = _best(known, wanted)
    return None if best is None else best.strip()


def _best(known: Sequence[str], wanted: str) -> str | None:
    words = plain_words(wanted)
    likeness = [
        difflib.SequenceMatcher(None, plain_words(one), words, autojunk=False).ratio()
        for one in known
    ]
    scored = sorted(((like, -place) for place, like in enumerate(likeness)), reverse=True)
    if not scored or scored[0][0] < NEAR:
        return None
    if len(scored) > 1 and scored[1][0] > scored[0][0] - AHEAD:
        return None
    return known[-scored[0][1]]
