"""Questions of search self-play: how often each was solved, step by step.

    questions_page(folder, sort="newest", ...)

A solver's sample holds its question as `info["ssp"]`; the attempts at a question in a step are one
group.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from burnish.store.reader import RunReader
from burnish.view.pages.runs import NotFound, open_run

SORTS = ("newest", "hardest", "easiest", "most_played")
"""By the step it was first solved in; by its newest success rate; by how often it was played."""
SHOWN = 1000
"""Characters of a question."""


class Played(Struct, frozen=True):
    step: int
    number: int
    """The step as people count."""
    group: str
    success: float | None
    attempts: int
    origin: str
    """proposed, replayed, copied or given."""


class QuestionLine(Struct, frozen=True, kw_only=True):
    question: str
    answer: list[str]
    plays: list[Played]
    success: float | None
    """The newest rate."""


class QuestionsPage(Struct, frozen=True, kw_only=True):
    """Questions of a run; `next` goes into `after`."""

    questions: list[QuestionLine]
    count: int
    replayed: int
    """Questions that were played in several steps."""
    next: int | None


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


def questions_page(folder: Path, *, sort: str, after: int, limit: int) -> QuestionsPage:
    """Questions of all steps, each once, with its plays in order."""
    with open_run(folder) as run:
        lines = _lines(run)
        if not lines and not has_questions(run):
            raise NotFound("this run has no questions; search self-play stores them.")
    ordered = sorted(lines, key=lambda line: _place(line, sort))
    end = after + limit
    return QuestionsPage(
        questions=ordered[after:end],
        count=len(lines),
        replayed=sum(len(line.plays) > 1 for line in lines),
        next=end if end < len(lines) else None,
    )


def _place(line: QuestionLine, sort: str) -> tuple[float, float]:
    newest = float(-line.plays[-1].step)
    if sort == "most_played":
        return (float(-len(line.plays)), newest)
    if sort == "newest" or line.success is None:
        return (newest if sort == "newest" else float("inf"), newest)
    return (line.success if sort == "hardest" else -line.success, newest)


def _lines(run: RunReader) -> list[QuestionLine]:
    query = (
        "SELECT step, group_key, count(*), json_extract(info, '$.ssp') FROM samples "
        "WHERE role = 'solver' AND split IN ('train', 'dropped') "
        "AND json_type(info, '$.ssp') = 'object' GROUP BY step, group_key ORDER BY step, min(idx)"
    )
    known: dict[str, tuple[_Facts, list[Played]]] = {}
    for step, group, attempts, text in run.query(query):
        try:
            facts = msgspec.json.decode(text, type=_Facts)
        except msgspec.MsgspecError:
            continue
        played = Played(step, step + 1, group, facts.success, attempts, facts.origin)
        known.setdefault(facts.id, (facts, []))[1].append(played)
    return [
        QuestionLine(
            question=facts.question[:SHOWN],
            answer=facts.answer,
            plays=plays,
            success=plays[-1].success,
        )
        for facts, plays in known.values()
    ]
