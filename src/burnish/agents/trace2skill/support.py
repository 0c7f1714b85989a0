"""What support is worth: rules that recur go to SKILL.md, single ones to a file of rare cases.

    placed = by_support(merged.patch.edits, files, count=len(patches))
    placed.kept, placed.moved, placed.dropped

The threshold is ours; the paper leaves "prefer what recurs" to the prompt of the merge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from burnish.agents.trace2skill.guards import Dropped, Edit
from burnish.agents.trace2skill.patches import content_of, support_of
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


def by_support(
    edits: Sequence[Edit],
    files: Mapping[str, str],
    *,
    count: int,
    tau: float = 0.02,
    rare: str = "references",
) -> Placed:
    """Edits of `SKILL.md` with enough support stay; of the others the content becomes a rare case.

    `rare="drop"` drops them instead. Edits that take text away need the support in any file.
    """
    if rare not in ("references", "drop"):
        raise UserError(f"rare is '{rare}'; expected references or drop.")
    needed = needed_support(count, tau)
    strong = {id(edit) for edit in edits if support_of(edit) >= needed}
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
    few = "trajectories speak for it; needed"
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
            dropped.append(Dropped(edit, f"{support_of(edit)} {few} {needed}"))
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
