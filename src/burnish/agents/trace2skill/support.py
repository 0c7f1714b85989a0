"""What support is worth: rules that recur go to SKILL.md, single ones to a file of rare cases.

    placed = by_support(merged.patch.edits, files, count=len(patches))
    placed.kept, placed.moved, placed.dropped
    cite(merged, patches, level)                # whose support a merged edit may count

The threshold is ours; the paper leaves "prefer what recurs" to the prompt of the merge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from burnish.agents.trace2skill.edits import plain_words
from burnish.agents.trace2skill.guards import Dropped, Edit, Sifted, Support, support_of
from burnish.agents.trace2skill.patches import Patch, content_of
from burnish.agents.trace2skill.skill_files import mentioned
from burnish.arguments import as_number, as_whole
from burnish.errors import UserError
from burnish.rewards.judges.skill_rm.package import MANUAL

RARE = "references/rare-cases.md"
"""Where edits with little support go."""


class Placed(NamedTuple):
    """Edits after the threshold of support."""

    kept: list[Edit]
    moved: list[Edit]
    """Those whose content went to a file of rare cases."""
    dropped: list[Dropped]


def needed_support(count: int, tau: float = 0.02) -> int:
    """Trajectories that must speak for an edit of `SKILL.md`: max(2, ceil(tau * patches)).

    >>> needed_support(60), needed_support(323)
    (2, 7)
    """
    as_whole("count", count, low=0)
    # A product such as 0.07 * 100 is a little more than 7; that must not cost a whole trajectory.
    return max(2, math.ceil(round(as_number("tau", tau, low=0, high=1) * count, 9)))


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
    rare: str = "references",
    support: Support = support_of,
) -> Placed:
    """Edits of `SKILL.md` with enough support stay; of the others the content becomes a rare case.

    `rare="drop"` drops them instead. Edits that take text away need the support in any file.
    `support` counts what speaks for an edit (`by_task`: tasks, not trajectories).
    """
    if rare not in ("references", "drop"):
        raise UserError(f"rare is '{rare}'; expected references or drop.")
    needed = needed_support(count, tau)
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
        adds = edit["op"] not in ("replace_in_section", "delete_section", "delete_file")
        if edit["op"] == "create":
            # A file and its link have one fate: that of the link, which stands in SKILL.md.
            stays = edit.get("file") in linked
        else:
            stays = id(edit) in strong or (adds and edit.get("file") != MANUAL)
        is_link = edit["op"] != "create" and bool(made & set(mentioned(content_of(edit))))
        if stays:
            kept.append(edit)
        elif rare == "references" and adds and not is_link and content_of(edit).strip():
            moved.append(edit)
        else:
            dropped.append(Dropped(edit, f"{support(edit)} {few} {needed}"))
    return Placed(kept + _rare_edits(moved, files), moved, dropped)


def _rare_edits(moved: Sequence[Edit], files: Mapping[str, str]) -> list[Edit]:
    """One file with what was seen once, and the link to it."""
    if not moved:
        return []
    sources = sorted({one for edit in moved for one in edit.get("source_ids", ())})
    seen = [content_of(edit).strip() for edit in moved]
    text = "\n\n".join(dict.fromkeys(seen))
    common = {"source_ids": sources}
    if RARE in files:
        title = next((line for line in files[RARE].split("\n") if line.startswith("#")), "")
        add: Edit = {"op": "append_to_section", "file": RARE, "target_section": title, **common}
        return [{**add, "content": text}]
    body = f"# Rare cases\n\nSeen in single trajectories; use them where they fit.\n\n{text}\n"
    link = f"- [Rare cases]({RARE}): seen in single trajectories; read it when a task is unusual."
    return [
        {"op": "create", "file": RARE, "content": body, **common},
        {"op": "add_section", "file": MANUAL, "target_section": "## Further reading",
         "content": link, **common},
    ]  # fmt: skip


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
    """Whether an input edit can speak for a merged one."""
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
