"""Marks of one answer by one rubric: asked for, read strictly, pitfalls confirmed.

    marked = await mark_answer(judge, rubric, conversation, answer, about=(task.id, response.id))
    marked.marks["i1"].level, marked.marks["i1"].quote

A mark above 0 needs words that stand in the answer; without them the item is missing, not 0. A
pitfall that is marked is looked for a second time, and the lower of the two levels counts: pitfalls
are what judges agree on least, and they cost most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from burnish.records import Evidence, Status
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.prompting import as_user, fence, fill, mark_for
from burnish.rewards.judges.questions import Heard, Question, Unreadable
from burnish.rewards.judges.rubric import wording
from burnish.rewards.judges.rubric.items import Rubric
from burnish.rewards.judges.rubric.score import ENOUGH_ESSENTIALS, LEVELS, MarkedItem, Tier


class Mark(NamedTuple):
    """The level of one item, and the words it rests on."""

    item: str
    level: int | None
    """None where the mark is missing or does not count."""
    quote: str = ""
    reason: str = ""
    first: int | None = None
    """Of a pitfall that was looked for twice: the first level; `second` is the other."""
    second: int | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether a second look found the pitfall, too."""
        return bool(self.first and self.second)


@dataclass(frozen=True)
class Marked:
    """All marks of one answer, or why there are none."""

    marks: Mapping[str, Mark] | None
    status: Status = Status.OK
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()

    def items(self, rubric: Rubric) -> list[MarkedItem]:
        """What the formula reads."""
        marks = self.marks or {}
        return [
            MarkedItem(item.tier, _level(marks.get(item.id)), item.weight, item.tag, item.id)
            for item in rubric.items
        ]


async def mark_answer(
    judge: JudgeModel,
    rubric: Rubric,
    conversation: str,
    answer: str,
    *,
    about: tuple[str, ...] = (),
    confirm: JudgeModel | None = None,
) -> Marked:
    """Marks by `judge`; pitfalls above 0 by `confirm`, too (by `judge` again where none is given)."""
    heard = await _ask(judge, "rubric_marks", wording.MARK, rubric, conversation, answer, about, 0)
    if heard.verdict is None:
        return Marked(None, heard.status, heard.reason, heard.evidence)
    marks = heard.verdict
    pitfalls = [
        item.id for item in rubric.items if item.tier == Tier.PITFALL and marks[item.id].level
    ]
    if not pitfalls:
        return Marked(marks, evidence=heard.evidence)
    again = await _ask(
        confirm or judge,
        "rubric_confirm",
        wording.CONFIRM,
        rubric,
        conversation,
        answer,
        about,
        1,
        pitfalls,
    )
    evidence = (*heard.evidence, *again.evidence)
    if again.verdict is None:
        reason = f"pitfalls {', '.join(pitfalls)} could not be confirmed: {again.reason}"
        return Marked(None, again.status, reason, evidence)
    return Marked({**marks, **_confirmed(marks, again.verdict, pitfalls)}, evidence=evidence)


async def _ask(
    judge: JudgeModel,
    kind: str,
    template: str,
    rubric: Rubric,
    conversation: str,
    answer: str,
    about: tuple[str, ...],
    vote: int,
    only: Sequence[str] | None = None,
) -> Heard[dict[str, Mark]]:
    items = wording.rubric_text(rubric, only)
    mark = mark_for(conversation, items, answer)
    values = {
        "mark": mark,
        "conversation": fence("question", conversation, mark),
        "rubric": fence("items", items, mark),
        "answer": fence("answer", answer, mark),
    }
    question = Question(kind, as_user(fill(template, values)), about, vote)
    return await judge.ask(question, partial(read_marks, rubric=rubric, answer=answer, only=only))


def read_marks(
    text: str, rubric: Rubric, answer: str, only: Sequence[str] | None = None
) -> dict[str, Mark]:
    """A mark for every item that was asked about; raises `Unreadable` where too few count.

    With `only` (the second look) every one of those must be there; else 90 % of the essential
    weight.
    """
    wanted = [item for item in rubric.items if only is None or item.id in only]
    said: dict[str, list[dict[str, Any]]] = {}
    for row in wording.read_list(text, (answer,)):
        said.setdefault(str(row.get("item", row.get("item_id", ""))), []).append(row)
    marks = {item.id: _mark(item.id, said.get(item.id, []), answer) for item in wanted}
    if not any(rows for name, rows in said.items() if name in marks):
        raise Unreadable(f"expected marks for {', '.join(marks)}, got {', '.join(said) or 'none'}")
    needed = [i for i in wanted if only is not None or i.tier == Tier.ESSENTIAL]
    lacking = [item for item in needed if marks[item.id].level is None]
    missing = math.fsum(abs(item.weight) for item in lacking)
    total = math.fsum(abs(item.weight) for item in needed)
    share = 1.0 if only is not None else ENOUGH_ESSENTIALS
    if lacking and total - missing < share * total * (1 - 1e-12):
        told = "; ".join(f"{item.id}: {marks[item.id].reason}" for item in lacking)
        raise Unreadable(f"expected a level for each of the items, got {told}")
    return marks


def _mark(item: str, rows: Sequence[Mapping[str, Any]], answer: str) -> Mark:
    if not rows:
        return Mark(item, None, reason="no mark")
    if any(row.get("level") != rows[0].get("level") for row in rows):
        return Mark(item, None, reason="two marks that differ")
    level, quote = rows[0].get("level"), str(rows[0].get("quote") or "")
    reason = str(rows[0].get("reason") or "")
    if isinstance(level, bool) or level not in LEVELS:
        return Mark(item, None, quote, f"level {level!r:.20} is none of 0, 1 and 2")
    if level and not wording.stands_in(quote, answer):
        shown = quote[:60] or "nothing"
        return Mark(item, None, quote, f"its quotation does not stand in the answer: {shown}")
    return Mark(item, int(level), quote, reason)


def _confirmed(
    marks: Mapping[str, Mark], again: Mapping[str, Mark], pitfalls: Sequence[str]
) -> dict[str, Mark]:
    found = {}
    for name in pitfalls:
        one, two = marks[name], again[name]
        level = min(one.level or 0, two.level or 0)
        word = "confirmed" if level else "not confirmed"
        reason = f"{word}: {one.level} at first, {two.level} at a second look; {one.reason}"
        found[name] = Mark(name, level, one.quote, reason, one.level, two.level)
    return found


def _level(mark: Mark | None) -> int | None:
    return None if mark is None else mark.level
