"""Questions of search self-play: how often each was solved, step by step.

    questions_page(folder, sort="newest", ...)

A solver's sample holds its question as `info["ssp"]`; the attempts at a question in a step are one
group.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
from msgspec import Struct

from burnish.store.reader import RunReader
from burnish.view.pages.runs import NotFound, Page, open_run, paged

SORTS = ("newest", "hardest", "easiest", "most_played")
"""By the step it was first solved in; by its newest success rate; by how often it was played."""
SHOWN = 1000
"""Characters of a question."""


class _Facts(Struct, frozen=True):
    """`info["ssp"]` of a solver's sample."""

    question: str
    answer: list[str]
    id: str
    origin: str = ""
    success: float | None = None


def has_questions(run: RunReader) -> bool:
    """True if the run plays search self-play."""
    # Only the first step is looked at: a large run of another kind is not read through.
    query = (
        "SELECT 1 FROM samples WHERE step = (SELECT min(step) FROM rollouts) "
        "AND split IN ('train', 'dropped') AND json_type(info, '$.ssp') = 'object' LIMIT 1"
    )
    return any(True for _ in run.query(query))


def questions_page(folder: Path, *, sort: str, after: int, limit: int) -> Page:
    """Questions of all steps, each once, with its plays in order."""
    with open_run(folder) as run:
        lines = _lines(run)
        if not lines and not has_questions(run):
            raise NotFound("this run has no questions; search self-play stores them.")

    def place(line: Page) -> tuple[float, int]:
        first = {"most_played": float(-len(line["plays"])), "newest": 0.0}.get(sort)
        if first is None:  # by success; a question without a rate comes last
            rate = line["success"]
            first = math.inf if rate is None else rate if sort == "hardest" else -rate
        return first, -line["plays"][-1]["step"]

    shown, behind = paged(sorted(lines, key=place), after, limit)
    return {
        "questions": shown,
        "count": len(lines),
        "replayed": sum(len(line["plays"]) > 1 for line in lines),  # in several steps
        "next": behind,
    }


def _lines(run: RunReader) -> list[Page]:
    query = (
        "SELECT step, group_key, count(*), json_extract(info, '$.ssp') FROM samples "
        "WHERE role = 'solver' AND split IN ('train', 'dropped') "
        "AND json_type(info, '$.ssp') = 'object' GROUP BY step, group_key ORDER BY step, min(idx)"
    )
    known: dict[str, Page] = {}
    for step, group, attempts, text in run.query(query):
        try:
            facts = msgspec.json.decode(text, type=_Facts)
        except msgspec.MsgspecError:
            continue
        new = {"question": facts.question[:SHOWN], "answer": facts.answer, "plays": []}
        line = known.setdefault(facts.id, new)
        line["success"] = facts.success  # the newest rate
        played = {"step": step, "number": step + 1, "group": group, "attempts": attempts}
        line["plays"].append(played | {"success": facts.success, "origin": facts.origin})
    return list(known.values())
