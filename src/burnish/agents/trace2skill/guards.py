"""What a patch may do to a skill: rules in code that no prompt can talk its way around.

    kept, dropped = well_formed(edits)           # nothing that breaks a file or cannot be written
    kept, dropped = sift(edits, files)           # paths, protected files, pairs of file and link
    kept, dropped = conflicts(kept, files)       # two edits of the same lines: more support wins
    kept, dropped = contradictions(kept)         # do X, never X

Trajectories are other people's text, and so is everything a model made of them. The released code
asks for most of these rules in a prompt; its paths are unchecked.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from burnish.agents.trace2skill.edits import (
    NO_TARGET,
    OPERATIONS,
    WRITERS,
    Edit,
    GivenEdit,
    Span,
    as_edit,
    front_lines,
    outline,
    plain_words,
    span_of,
    try_edit,
)
from burnish.agents.trace2skill.skill_files import mentioned
from burnish.arguments import as_list, as_table
from burnish.boundary import public
from burnish.rewards.judges.skill_rm.package import MANUAL

_FILE = re.compile(r"SKILL\.md|references/\w[\w\-]*(?:\.[\w\-]+)*\.md")
_SCRIPT = re.compile(r"scripts/\w[\w\-]*(?:\.[\w\-]+)*\.(?:py|sh|js)")


class Dropped(NamedTuple):
    edit: Edit
    reason: str


class Sifted(NamedTuple):
    kept: list[Edit]
    dropped: list[Dropped]


Support = Callable[[Edit], int]
"""How many independent trajectories speak for an edit."""


def support_of(edit: Mapping[str, Any]) -> int:
    """The trajectories that speak for an edit, each counted."""
    return len(edit.get("source_ids", ()))


# --- what an edit would write

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters (a tab and a line feed are none), and halves of characters."""


def well_formed(edits: Sequence[Edit]) -> Sifted:
    """Drop edits that would break the file around them: control characters, open code, headings.

    A heading of the level of its section, or above it, would end the section and take what follows
    it along. A content that begins by repeating the heading of its section loses that line.
    """
    kept, dropped = [], []
    for edit in edits:
        whole = _without_own_heading(edit)
        problem = _broken(whole)
        if problem:
            dropped.append(Dropped(edit, problem))
        else:
            kept.append(whole)
    return Sifted(kept, dropped)


def _without_own_heading(edit: Edit) -> Edit:
    first, _, rest = (edit.get("content") or "").partition("\n")
    own = (edit.get("target_section") or "").strip()
    repeats = edit["op"] in ("append_to_section", "add_section") and own and first.strip() == own
    return {**edit, "content": rest.lstrip("\n")} if repeats and rest.strip() else edit


def _broken(edit: Edit) -> str:
    fields = {name: edit.get(name) or "" for name in ("content", "target_section", "file")}
    for name, text in fields.items():
        if _CONTROL.search(text.replace("\r\n", "\n")):
            return f"its {name} holds control characters"
    section, content = fields["target_section"], fields["content"]
    found = outline(["", *content.split("\n")])  # a line of dashes at its top is no front matter
    if found.is_open:
        return "it opens a block of code and never closes it"
    if edit["op"] == "add_section" and section:
        lines = section.split("\n")
        if len(lines) > 1 or not outline(["", *lines]).headings:
            return "its target_section is no heading"
    if edit["op"] not in ("create", "delete_file") and found.headings:
        heading = section.strip() or "## "
        level = len(heading) - len(heading.lstrip("#"))
        if min(found.headings.values()) <= level:
            return "it holds a heading that would end the section it is written into"
    return ""


# --- paths, and files with their links


@public
def sanitize(
    edits: Sequence[GivenEdit],
    state: Mapping[str, str],
    protected: Sequence[str] = (),
    scripts: bool = False,
) -> list[Edit]:
    """The edits that may be carried out on the files of `state`.

    Only `SKILL.md` and `references/NAME.md` may be touched (with `scripts` also `scripts/NAME.py`),
    never a protected file; `create` overwrites nothing, other edits need an existing file; a new
    reference needs a link from `SKILL.md`, a link its file. Repeated until nothing is left to drop.

    >>> sanitize([{"op": "create", "file": "../x.md", "content": "no"}], {"SKILL.md": "# A"})
    []
    """
    return sift(edits, state, protected=protected, scripts=scripts).kept


def sift(
    edits: Sequence[Edit],
    state: Mapping[str, str],
    *,
    protected: Sequence[str] = (),
    scripts: bool = False,
) -> Sifted:
    """`sanitize`, with the edits that were dropped and the reasons."""
    safe = frozenset(map(_same, protected))
    made = {edit.get("file") for edit in edits if edit["op"] == "create"}
    kept: list[Edit] = []
    dropped: list[Dropped] = []
    for edit in edits:
        problem = _problem(edit, state, made, safe, scripts=scripts)
        if problem:
            dropped.append(Dropped(edit, problem))
        else:
            kept.append(edit)
    paired = _paired(kept, state, links_from=(MANUAL,))
    return Sifted(paired.kept, dropped + paired.dropped)


def _problem(
    edit: Edit,
    files: Mapping[str, str],
    made: set[Any],
    protected: frozenset[str],
    *,
    scripts: bool,
) -> str:
    operation, file = edit["op"], edit.get("file") or ""
    if operation not in OPERATIONS:
        return f"no operation '{operation}'"
    if not _FILE.fullmatch(file) and not (scripts and _SCRIPT.fullmatch(file)):
        return f"'{file[:80]}' is no file of a skill that may be edited"
    if _same(file) in protected:
        return f"{file} is protected"
    if file == MANUAL:
        is_whole = operation in ("create", "delete_file")
        return f"{MANUAL} is never created or deleted" if is_whole else ""
    if operation == "create":
        return f"{file} exists already" if _same(file) in map(_same, files) else ""
    return "" if file in files or file in made else f"there is no file {file}"


def _same(path: str) -> str:
    """A path without spelling: what two names of one file on any disk have in common."""
    plain = unicodedata.normalize("NFKC", path.strip().replace("\\", "/")).casefold()
    return posixpath.normpath(plain).lstrip("/")


@public
def enforce_pairs(patches: Sequence[object], state: Mapping[str, str]) -> list[dict[str, Any]]:
    """Patches in which every new reference has its link in the same patch, and every link its file.

    A file is deleted only with its links. Dropping one side may orphan the other, so the rule is
    repeated until nothing changes (the released code tests each side once).

    >>> patch = {"edits": [{"op": "create", "file": "references/a.md", "content": "A"}]}
    >>> enforce_pairs([patch], {"SKILL.md": "# S"})
    [{'edits': []}]
    """
    found = []
    for patch in patches:
        table = as_table("patches", patch, "patches: tables with a list of edits")
        edits = [as_edit("patches", edit) for edit in as_list("patches", table.get("edits", ()))]
        found.append({**table, "edits": _paired(edits, state).kept})
    return found


def _paired(
    edits: Sequence[Edit], files: Mapping[str, str], links_from: tuple[str, ...] = ()
) -> Sifted:
    kept, dropped = list(edits), list[Dropped]()
    while True:
        links = _Links(kept, files, links_from)
        reasons = [links.lack(edit) for edit in kept]
        if not any(reasons):
            return Sifted(kept, dropped)
        dropped += [Dropped(e, r) for e, r in zip(kept, reasons, strict=True) if r]
        kept = [edit for edit, reason in zip(kept, reasons, strict=True) if not reason]


class _Links:
    def __init__(
        self, edits: Sequence[Edit], files: Mapping[str, str], links_from: tuple[str, ...]
    ) -> None:
        self.files = files
        self.made = {one.get("file") for one in edits if one["op"] == "create"}
        self.gone = {one.get("file") for one in edits if one["op"] == "delete_file"}
        links = [one for one in edits if one["op"] not in ("create", "delete_file")]
        links = [one for one in links if not links_from or one.get("file") in links_from]
        self.linked = {name for one in links for name in mentioned(one.get("content") or "")}
        self.left = {path: _left(path, edits, files) for path in files}
        before = set(mentioned(files.get(MANUAL, "")))
        self.lost = before - set(mentioned(self.left.get(MANUAL, "")))

    def lack(self, edit: Edit) -> str:
        """What the edit lacks among the others."""
        operation, file = edit["op"], edit.get("file") or ""
        if operation == "delete_file":
            left = [path for path, text in self.left.items() if path != file and file in text]
            return f"{left[0]} still links to it" if left else ""
        for one in mentioned(edit.get("content") or ""):
            if (one not in self.files and one not in self.made) or one in self.gone:
                return f"links to {one}, which no edit of the patch creates"
        if operation == "create":
            if file in self.files:
                return f"{file} exists already"
            return "" if file in self.linked else f"no edit of the patch links to {file}"
        if operation in WRITERS and file == MANUAL and self.lost:
            text = self.files.get(file, "")
            own = set(mentioned(text)) - set(mentioned(try_edit(text, edit).text))
            orphans = sorted(
                one for one in self.lost & own if one in self.files and one not in self.gone
            )
            if orphans:
                return f"takes away the only link to {orphans[0]}"
        return ""


def _left(path: str, edits: Sequence[Edit], files: Mapping[str, str]) -> str:
    text = files.get(path, "")
    for edit in edits:
        if edit.get("file") == path:
            text = "" if edit["op"] == "delete_file" else try_edit(text, edit).text
    return text


# --- edits that are in each other's way


def conflicts(
    edits: Sequence[Edit], state: Mapping[str, str], support: Support = support_of
) -> Sifted:
    """Of two edits of the same lines, one of which takes lines away, one stays.

    More support wins, then the later merge level, then the earlier place. Additions never conflict.
    Edits of the front matter, and edits whose target is missing, are dropped here too.
    """
    kept: list[Edit] = []
    dropped: list[Dropped] = []
    taken: list[tuple[str, Span]] = []
    order = sorted(
        range(len(edits)),
        key=lambda i: (-support(edits[i]), -edits[i].get("level", 0), i),
    )
    chosen: set[int] = set()
    for index in order:
        edit = edits[index]
        file = edit.get("file") or ""
        if edit["op"] in ("create", "delete_file") or file not in state:
            chosen.add(index)
            continue
        span = span_of(edit, state[file])
        if span is None:
            dropped.append(Dropped(edit, NO_TARGET))
        elif span.start < front_lines(state[file].split("\n")):
            dropped.append(Dropped(edit, "it would change the front matter"))
        elif any(path == file and _overlap(span, other) for path, other in taken):
            dropped.append(
                Dropped(edit, "another edit of these lines has more support or came first")
            )
        else:
            taken.append((file, span))
            chosen.add(index)
    kept = [edit for index, edit in enumerate(edits) if index in chosen]
    return Sifted(kept, dropped)


def _overlap(a: Span, b: Span) -> bool:
    return (a.takes or b.takes) and max(a.start, b.start) < min(a.end, b.end)


_NEGATIVE = {
    *("never", "not", "no", "dont", "avoid", "without"),
    *("cannot", "cant", "mustnt", "shouldnt", "stop"),
}
_MODAL = {
    *("always", "do", "must", "should", "shall", "please", "be", "to", "the", "a", "an"),
    *("you", "your", "it", "is", "are", "make", "sure", "ensure"),
}


def contradictions(edits: Sequence[Edit], support: Support = support_of) -> Sifted:
    """Of "do X" and "never X" the one with more support stays; of equal support neither does."""
    sides: dict[frozenset[str], tuple[set[int], set[int]]] = {}
    for index, edit in enumerate(edits):
        for words, is_negative in _rules(edit):
            sides.setdefault(words, (set(), set()))[is_negative].add(index)
    dropped: dict[int, str] = {}
    for demands, bans in sides.values():
        for own, others in ((demands, bans), (bans, demands)):
            for index in own:
                rivals = [support(edits[i]) for i in others if i != index]
                if rivals and support(edits[index]) <= max(rivals):
                    even = support(edits[index]) == max(rivals)
                    dropped[index] = "another edit says the opposite with " + (
                        "as much support" if even else "more support"
                    )
    return Sifted(
        [edit for index, edit in enumerate(edits) if index not in dropped],
        [Dropped(edits[index], reason) for index, reason in sorted(dropped.items())],
    )


def is_forbidding(text: str) -> bool:
    """Whether a rule begins by forbidding: never, do not, avoid.

    >>> is_forbidding("- Do not sort."), is_forbidding("- Write values, not formulas.")
    (True, False)
    """
    words = plain_words(text.replace("'", "").replace("\u2019", "")).split()
    return bool(_NEGATIVE & set(words[:3]))


def _rules(edit: Edit) -> Iterable[tuple[frozenset[str], bool]]:
    for line in (edit.get("content") or "").split("\n"):
        words = plain_words(line.replace("'", "").replace("\u2019", "")).split()
        core = frozenset(words) - _NEGATIVE - _MODAL
        if len(core) >= 2:
            yield core, bool(_NEGATIVE & set(words))
