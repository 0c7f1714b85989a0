"""Patches against one frozen skill: read from a reply, merged in a tree, carried out on a copy.

An edit carries `source_ids`, the trajectories that speak for it. Merging unites them: an edit that
recurs in independent patches is evidence for a rule (ours; the paper leaves it to the merge prompt).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from burnish.agents.trace2skill.edits import (
    KNOWN,
    TEXTS,
    Edit,
    as_edit,
    breaks,
    code_blocks,
    dedupe,
    headings,
    plain_words,
    target_of,
    try_edit,
)
from burnish.agents.trace2skill.guards import Dropped, Sifted, Support, support_of
from burnish.agents.trace2skill.skill_files import mentioned
from burnish.boundary import Count, Draws, Share, public
from burnish.concurrency import gather
from burnish.rewards.judges.prompting import Unreadable
from burnish.rewards.judges.reading import after_thoughts, objects_in
from burnish.rewards.judges.skill_rm.package import MANUAL

logger = logging.getLogger(__name__)

MOST_EDITS = 40
"""Edits of one patch; a model that writes more repeats itself."""

MOST_REPLY = 200_000
"""Characters of a broken reply that are searched for edits."""


class Patch(NamedTuple):
    edits: tuple[Edit, ...] = ()
    reasoning: str = ""
    changelog: tuple[str, ...] = ()
    source_ids: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    """Of a merge: edits that it did not keep, and own ones without support."""


@public
def balanced_chunks(n: Annotated[int, Meta(ge=0, le=1_000_000)], size: Draws) -> list[list[int]]:
    """Places 0 .. n-1 in chunks of about `size`: a remainder below half of it is spread.

    The items of a small remainder go round the earlier chunks, so a chunk may be larger than `size`.

    >>> balanced_chunks(7, 3), balanced_chunks(8, 3)
    ([[0, 1, 2, 6], [3, 4, 5]], [[0, 1, 2], [3, 4, 5], [6, 7]])
    """
    full, rest = divmod(n, size)
    if full == 0:
        return [list(range(n))] if n else []
    chunks = [list(range(i * size, (i + 1) * size)) for i in range(full)]
    left = range(full * size, n)
    if rest >= size / 2:
        return [*chunks, list(left)] if rest else chunks
    for place, item in enumerate(left):
        chunks[place % full].append(item)
    return chunks


# --- reading


def read_patch(reply: str, *, cited: bool = False) -> Patch:
    """The patch that a reply consists of; several are joined in order. Raises `Unreadable`.

    With `cited` every edit keeps `from`, the ids of the edits that it was merged from.
    """
    found = list(objects_in(after_thoughts(reply)))
    tables = [one for one in found if isinstance(one.get("edits"), list)]
    if not tables:
        raise Unreadable('expected a JSON object with "reasoning", "edits", "changelog_entries"')
    return _patch(tables, cited=cited)


def read_patch_loosely(reply: str, *, cited: bool = False) -> Patch:
    """Every whole edit of a reply that was cut or is wrapped in other text; may find none."""
    try:
        own = after_thoughts(reply[:MOST_REPLY])
    except Unreadable:
        return Patch()
    found: list[Any] = []
    for one in objects_in(own):  # whole edits, and those of whole patches
        rows = one.get("edits")
        found += [one, *(rows if isinstance(rows, list) else ())]
    return _patch([{"edits": found}], cited=cited)


def _patch(tables: Iterable[Mapping[str, Any]], *, cited: bool) -> Patch:
    edits: list[Edit] = []
    changelog: list[str] = []
    reasons = []
    for table in tables:
        reasons.append(str(table.get("reasoning") or ""))
        entries = table.get("changelog_entries")
        changelog += [str(one) for one in entries] if isinstance(entries, list) else []
        for row in table["edits"]:
            if not isinstance(row, dict) or not isinstance(row.get("op"), str):
                continue
            edit = {"op": row["op"]}
            edit |= {key: str(row[key]) for key in TEXTS if row.get(key) is not None}
            edit.setdefault("file", MANUAL)
            if cited:
                given = row.get("from")
                names = given if isinstance(given, list) else [given] if given else []
                edit["from"] = [str(one) for one in names]
            edits.append(as_edit("edits", edit))
    return Patch(tuple(edits[:MOST_EDITS]), " ".join(filter(None, reasons)), tuple(changelog))


# --- merging

Merge = Callable[[Sequence[Patch], int], Awaitable[Sequence[Patch] | None]]
"""A few patches and the level of the tree: the patches they become, or None where it failed."""


class Merged(NamedTuple):
    patch: Patch
    levels: int
    calls: int
    warnings: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()


async def merge_tree(
    patches: Sequence[Patch], merge: Merge, *, size: int = 5, levels: int = 5, limit: int = 4
) -> Merged:
    """Merge up to `size` patches at a time, level by level, until one is left.

    A merge that fails passes its patches on. What is left after `levels` is merged at once; where
    that fails too, the patches are united by code, with a warning (the released code keeps only the
    first patch there).
    """
    left, level, calls = [patch for patch in patches if patch.edits], 0, 0
    warnings: list[str] = []
    dropped: list[Dropped] = []

    async def one(group: Sequence[Patch], number: int) -> Sequence[Patch] | None:
        return group if len(group) == 1 else await merge(group, number)

    def taken(made: Sequence[Patch]) -> list[Patch]:
        dropped.extend(one for patch in made for one in patch.dropped)
        return [patch._replace(dropped=()) for patch in made]

    while len(left) > 1 and level < levels:
        level += 1
        groups = [[left[i] for i in chunk] for chunk in balanced_chunks.plain(len(left), size)]
        calls += sum(len(group) > 1 for group in groups)
        merged = await gather([partial(one, group, level) for group in groups], limit=limit)
        # In the order of the groups, not in that in which calls came back.
        left = []
        for group, made in zip(groups, merged, strict=True):
            if made is None:
                warnings.append(f"a merge of {len(group)} patches at level {level} failed")
            left += group if made is None else taken(made)
    if len(left) > 1:
        made = await merge(left, level + 1)
        level, calls = level + 1, calls + 1
        if made is None:
            text = f"{len(left)} patches could not be merged; united by code: expect repetitions"
            warnings.append(text)
            logger.warning("%s.", text)
        left = [united(left if made is None else taken(made))]
    patch = left[0] if left else Patch()
    return Merged(patch, level, calls, tuple(warnings), tuple(dropped))


def united(patches: Sequence[Patch], level: int = 0) -> Patch:
    """All edits of several patches, equal ones once with their supports united: no model needed.

    The same whatever the order of the patches. Files that two patches create are joined by section.
    """

    def order(edit: Edit) -> tuple[Any, ...]:
        text = content_of(edit)
        return target_of(edit), -len(text), text, edit.get("after_section") or ""

    every = sorted((edit for patch in patches for edit in patch.edits), key=order)
    made: dict[str, Edit] = {}
    others: list[Edit] = []
    for edit in every:
        file = edit.get("file") or ""
        if edit["op"] != "create":
            others.append(edit)
        elif file in made:
            joined = join_sections(content_of(made[file]), content_of(edit))
            sources = {*made[file].get("source_ids", ()), *edit.get("source_ids", ())}
            made[file] = {**made[file], "content": joined, "source_ids": sorted(sources)}
        else:
            made[file] = edit
    whole = dedupe.plain([*made.values(), *others], "content")
    return Patch(
        tuple({**edit, "level": level} for edit in whole),
        " ".join(sorted({patch.reasoning for patch in patches if patch.reasoning})),
        tuple(sorted({line for patch in patches for line in patch.changelog})),
        tuple(sorted({one for patch in patches for one in patch.source_ids})),
    )


def join_sections(first: str, second: str) -> str:
    """Two Markdown files as one: lines of `second` that `first` lacks, under the same headings."""

    def key(block: Sequence[str]) -> str:
        # A block of code is equal word for word alone.
        return plain_words(block[0]) if len(block) == 1 else "\n".join(block)

    sections = _sections(first)
    for title, lines in _sections(second).items():
        known = sections.setdefault(title, [])
        has = {key(block) for block in code_blocks(known)}
        blocks = [block for block in code_blocks(lines) if key(block) not in has]
        fresh = [line for block in blocks for line in block if len(block) > 1 or line.strip()]
        if fresh:
            while known and not known[-1].strip():
                known.pop()
            known += [*fresh, ""]
    parts = [
        line for title, lines in sections.items() for line in ([title] if title else []) + lines
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _sections(text: str) -> dict[str, list[str]]:
    lines = text.rstrip("\n").split("\n")
    starts = headings(lines)
    found: dict[str, list[str]] = {}
    title = ""
    for place, line in enumerate(lines):
        title = line if place in starts else title
        own = found.setdefault(title, [])
        if place not in starts:
            own.append(line)
    return found


# --- carrying out


class Changed(NamedTuple):
    files: dict[str, str]
    applied: list[Edit]
    skipped: list[Dropped]


def carry_out(edits: Sequence[Edit], files: Mapping[str, str]) -> Changed:
    """Make the edits on a copy, in their order; new files first, deletions last."""
    copy = dict(files)
    applied: list[Edit] = []
    skipped: list[Dropped] = []
    rank = {"create": 0, "delete_file": 2}
    for edit in sorted(edits, key=lambda edit: rank.get(edit["op"], 1)):
        file = edit.get("file") or ""
        problem = ""
        if edit["op"] == "create":
            if file in copy:
                problem = KNOWN if copy[file] == _whole(edit) else "the file exists"
            else:
                copy[file] = _whole(edit)
        elif file not in copy:
            problem = f"there is no file {file}"
        elif edit["op"] == "delete_file":
            del copy[file]
        else:
            made, problem = try_edit(copy[file], edit)
            problem = problem or breaks(copy[file], made, edit)
            copy[file] = copy[file] if problem else made
        if problem:
            skipped.append(Dropped(edit, problem))
        else:
            applied.append(edit)
    return Changed(copy, applied, skipped)


def _whole(edit: Edit) -> str:
    return content_of(edit).rstrip("\n") + "\n"


def content_of(edit: Mapping[str, Any]) -> str:
    return str(edit.get("content") or "")


RARE = "references/rare-cases.md"


@public
def needed_support(count: Count, tau: Share = 0.02) -> int:
    """Trajectories that must speak for an edit of `SKILL.md`: max(2, ceil(tau * patches)).

    >>> needed_support(60), needed_support(323)
    (2, 7)
    """
    # A product such as 0.07 * 100 is a little more than 7; that must not cost a whole trajectory.
    return max(2, math.ceil(round(tau * count, 9)))


def by_task(tasks: Mapping[str, str]) -> Support:
    """A count of support by task: ten rollouts of one task speak once; `tasks`: task by trajectory.

    >>> by_task({"r1": "sum", "r2": "sum", "r3": "sort"})({"source_ids": ["r1", "r2", "r3"]})
    2
    """
    return lambda edit: len({tasks.get(one, one) for one in edit.get("source_ids", ())})


def by_support(
    edits: Sequence[Edit],
    files: Mapping[str, str],
    *,
    count: int,
    tau: float = 0.02,
    support: Support = support_of,
) -> Sifted:
    """Edits of `SKILL.md` with enough support stay; of the others the content becomes a rare case.

    Edits that take text away need the support in any file.
    `support` counts what speaks for an edit (`by_task`: tasks, not trajectories).
    """
    needed = needed_support.plain(count, tau)
    strong = {id(edit) for edit in edits if support(edit) >= needed}
    made = {edit.get("file") for edit in edits if edit["op"] == "create"}
    linked = {
        file
        for edit in edits
        if id(edit) in strong and edit["op"] != "create"
        for file in mentioned(content_of(edit))
    }
    kept: list[Edit] = []
    moved: list[Edit] = []
    dropped: list[Dropped] = []
    few = "independent trajectories speak for it; needed"
    for edit in edits:
        adds = edit["op"] not in _REMOVALS
        stays = id(edit) in strong or (adds and edit.get("file") != MANUAL)
        if edit["op"] == "create":
            # A file and its link have one fate: that of the link, which stands in SKILL.md.
            stays = edit.get("file") in linked
        is_link = edit["op"] != "create" and bool(made & set(mentioned(content_of(edit))))
        if stays:
            kept.append(edit)
        elif adds and not is_link and content_of(edit).strip():
            moved.append(edit)
        else:
            dropped.append(Dropped(edit, f"{support(edit)} {few} {needed}"))
    return Sifted(kept + _rare_edits(moved, files), dropped)


def _rare_edits(moved: Sequence[Edit], files: Mapping[str, str]) -> list[Edit]:
    if not moved:
        return []
    sources = sorted({one for edit in moved for one in edit.get("source_ids", ())})
    seen = [content_of(edit).strip() for edit in moved]
    text = "\n\n".join(dict.fromkeys(seen))
    if RARE in files:
        title = next((line for line in files[RARE].split("\n") if line.startswith("#")), "")
        add: Edit = {"op": "append_to_section", "file": RARE, "target_section": title}
        return [{**add, "source_ids": sources, "content": text}]
    body = f"# Rare cases\n\nSeen in single trajectories; use them where they fit.\n\n{text}\n"
    link = f"- [Rare cases]({RARE}): seen in single trajectories; read it when a task is unusual."
    made: Edit = {"op": "create", "file": RARE, "content": body}
    linked: Edit = {"op": "add_section", "file": MANUAL, "target_section": "## Further reading"}
    return [made | {"source_ids": sources}, linked | {"content": link, "source_ids": sources}]


# --- support through a merge


def cite(merged: Patch, inputs: Sequence[Patch], level: int) -> Sifted:
    """A merged patch with the supports of the edits that it cites; without support an edit is dropped.

    Input edits are named `PATCH.EDIT`, both from 1, as `numbered` shows them. Each lends its support
    once, and only to an edit of the same file and section; what takes text away needs inputs that do.
    Inputs that lend it to none are listed as dropped.
    """
    unused = dict(numbered(inputs))
    kept: list[Edit] = []
    dropped: list[Dropped] = []
    for edit in merged.edits:
        cited = list(dict.fromkeys(edit.get("from", ())))
        plain = {key: value for key, value in edit.items() if key != "from"}
        lent = [one for one in cited if one in unused and _lends(unused[one], edit)]
        sources = sorted({name for one in lent for name in unused[one].get("source_ids", ())})
        if sources:
            kept.append({**plain, "source_ids": sources, "level": level})
            unused = {name: one for name, one in unused.items() if name not in lent}
        else:
            other = "the edits that the merge names are of another place or were counted already"
            none = "the merge names no edit that it was made from"
            dropped.append(Dropped(plain, other if cited else none))
    lost = [Dropped(one, f"the merge at level {level} leaves it out") for one in unused.values()]
    return Sifted(kept, dropped + lost)


_REMOVALS = {
    "delete_file": ("delete_file",),
    "delete_section": ("delete_section",),
    "replace_in_section": ("replace_in_section", "delete_section"),
}
"""Operations that take text away, and those that speak for it."""


def _lends(source: Edit, edit: Edit) -> bool:
    if source.get("file") != edit.get("file"):
        return False
    wanted = _REMOVALS.get(edit["op"])
    if source["op"] not in wanted if wanted else source["op"] in ("delete_file", "delete_section"):
        return False
    if "create" in (source["op"], edit["op"]):
        return True  # of the whole file
    first, second = (plain_words(one.get("target_section") or "") for one in (source, edit))
    return first == second


def numbered(patches: Sequence[Patch]) -> list[tuple[str, Edit]]:
    """Edits of several patches by their name for a merge: `2.1` is the first of the second patch."""
    return [
        (f"{place}.{number}", edit)
        for place, patch in enumerate(patches, 1)
        for number, edit in enumerate(patch.edits, 1)
    ]
