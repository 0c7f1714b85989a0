"""A rubric as a reward: every item marked by a judge, the score made by formula.

The rubric stands in a field of the task, or is given once for all tasks. The judge sees the
conversation, the items and the answer, never weights, provenance or other fields of the task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from burnish.boundary import Count, NonNegative, Positive
from burnish.errors import UserError
from burnish.records import (
    Evidence,
    MediaPart,
    Message,
    Response,
    Reward,
    Status,
    Task,
    Verdict,
    Visibility,
)
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import JudgeReply, Unreadable, request_of
from burnish.rewards.judges.reading import anything, free_table, read_list
from burnish.rewards.judges.rubric import building
from burnish.rewards.judges.rubric.formula import (
    ENOUGH_ESSENTIALS,
    LEVELS,
    Limit,
    MarkedItem,
    Saturated,
    Stabilised,
    Tier,
    Truncated,
    dialogue_score,
    explain,
)
from burnish.rewards.judges.rubric.items import Rubric, stands_in
from burnish.rewards.scorer import Scope, Scorer, gather
from burnish.seeds import digest

_CJK = "\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}](?:[^\W{_CJK}]|['’-])*")
CONCURRENT = 32


class Turn(NamedTuple):
    """One answer of a conversation, with what was said before it and its rubric."""

    conversation: str
    answer: str
    rubric: Rubric
    media: tuple[MediaPart, ...] = ()
    """Images and sounds of the conversation."""


class RubricScorer:
    """A point scorer by rubric; a conversation with a rubric a turn is worth the mean over turns."""

    scope = Scope.POINT

    def __init__(
        self,
        judge: JudgeModel,
        *,
        rubric: Rubric | None = None,
        field: str = "rubric",
        tier_weights: Mapping[str, float] | None = None,
        truncation: Truncated | None = None,
        saturation: Saturated | None = None,
        clip: bool = False,
        max_words: int = 0,
        name: str = "rubric",
    ) -> None:
        """`max_words` cuts longer answers before they are judged; 0 is no limit."""
        self.judge, self.rubric, self.field = judge, rubric, field
        self.settings: dict[str, Any] = {
            "tier_weights": tier_weights,
            "truncation": truncation,
            "saturation": saturation,
            "clip": clip,
        }
        explain([("essential", 0)], **self.settings)  # refuses settings that have no meaning
        self.max_words, self.name = max_words, name
        self.needs = frozenset() if rubric else frozenset({field})

    @property
    def fingerprint(self) -> str:
        """Changes with the judge, the words it is asked in, the formula's settings and a rubric
        that is given once."""
        rubric = self.rubric.hash if self.rubric else self.field
        settings = (repr(sorted(self.settings.items())), str(self.max_words))
        words = (building.wording("mark"), building.wording("confirm"))
        return digest(self.judge.fingerprint, "", rubric, *settings, *words)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        calls = [partial(self._one, task, response) for response in responses]
        return await gather(calls, limit=CONCURRENT)

    async def _one(self, task: Task, response: Response) -> Reward:
        given = self.rubric if self.rubric else task.fields.get(self.field)
        if not given:
            reason = f"task {task.id} has no rubric in its field '{self.field}'"
            return Reward.failed(self.name, Status.ABSTAIN, reason)
        oracle = self.rubric is None and self.field in task.labels
        sight = Visibility.ORACLE if oracle else Visibility.BENCHMARK
        turns, about = _turns(task, response, given), (task.id, response.id)
        if len(turns) == 1:
            return await self._turn(turns[0], about, sight)
        places = enumerate(turns, start=1)
        calls = [partial(self._turn, turn, (*about, f"turn {n}"), sight) for n, turn in places]
        return _dialogue(self.name, await gather(calls))

    async def _turn(self, turn: Turn, about: tuple[str, ...], sight: Visibility) -> Reward:
        answer, cut = limit_words(turn.answer, self.max_words)
        known = [Evidence(self.name, f"marked by rubric {turn.rubric.hash}", sight)]
        if cut:
            told = f"cut to {self.max_words} words before judging; {cut} words were left out"
            known.append(Evidence(self.name, told))
        if answer.strip():
            marked = await mark_answer(
                self.judge,
                turn.rubric,
                turn.conversation,
                answer,
                about=about,
                media=turn.media,
            )
        else:
            known.append(Evidence(self.name, "the answer is empty: nothing is met, nobody asked"))
            marked = Marked({item.id: Mark(item.id, 0) for item in turn.rubric.items})
        evidence = (*known, *marked.evidence)
        if marked.marks is None:
            return Reward.failed(self.name, marked.status, marked.reason, evidence=evidence)
        found = explain.plain(marked.items(turn.rubric), **self.settings)
        verdicts = _verdicts(marked.marks, len(evidence) - 1, len(known))
        more: dict[str, Any] = {"evidence": evidence, "verdicts": verdicts}
        if found.score is None:
            return Reward.failed(self.name, Status.ABSTAIN, found.reason, **more)
        # What each tier earned, as a share; a tier without a marked item has no part.
        parts = tuple(
            Reward(tier, total.share, reason=f"{total.earned:g} of {total.possible:g} points")
            for tier, total in found.tiers.items()
            if total.share is not None
        )
        notes = [*found.fired, *[f"not marked: {', '.join(found.missing)}"] * bool(found.missing)]
        return Reward(self.name, found.score, parts=parts, reason="; ".join(notes), **more)


def limit_words(text: str, most: int) -> tuple[str, int]:
    """The first `most` words of a text and how many were left out; 0 is no limit.

    A Chinese character counts as a word.
    """
    found = list(_WORD.finditer(text)) if most else []
    if len(found) <= most:
        return text, 0
    return text[: found[most - 1].end()], len(found) - most


def _turns(task: Task, response: Response, given: Any) -> list[Turn]:
    if not isinstance(given, list | tuple):
        return [Turn(request_of(task), response.text, _rubric(given), task.media)]
    answers = response.info.get("turns")
    answers = answers if isinstance(answers, list | tuple) else []
    asked = [message for message in task.messages if message.role == "user"]
    if not len(answers) == len(given) == len(asked):
        raise UserError(
            f"task {task.id} has {len(given)} rubrics and {len(asked)} questions, sample {response.id} "
            f"{len(answers)} answers; expected as many of each, the answers in `info['turns']`."
        )
    turns, before = [], list[Message]()
    for question, answer, rubric in zip(asked, answers, given, strict=True):
        before.append(question)
        asked_so_far = replace(task, messages=tuple(before))
        conversation, media = request_of(asked_so_far), asked_so_far.media
        turns.append(Turn(conversation, str(answer), _rubric(rubric), media))
        before.append(Message("assistant", str(answer)))
    return turns


def _rubric(given: Any) -> Rubric:
    return given if isinstance(given, Rubric) else Rubric.from_dict(given)


def _dialogue(name: str, rewards: Sequence[Reward]) -> Reward:
    """The mean over turns; a turn without a score leaves the conversation without one."""
    parts = tuple(replace(one, name=f"turn {n}") for n, one in enumerate(rewards, start=1))
    value = dialogue_score.plain([part.value for part in parts])
    if value is None:
        silent = next(part for part in parts if part.value is None)
        reason = f"{silent.name} has no score: {silent.reason}"
        return Reward.failed(name, silent.status, reason, parts=parts)
    return Reward(name, value, parts=parts, reason=f"mean of {len(parts)} turns")


def _verdicts(marks: Mapping[str, Mark], last: int, first: int) -> tuple[Verdict, ...]:
    """One an item, and both looks at a pitfall; `first` and `last` are the replies' places."""
    verdicts = []
    for mark in marks.values():
        told = f"{mark.reason} [{mark.quote}]" if mark.quote else mark.reason
        seen = (first,) if first <= last else ()
        value = None if mark.level is None else mark.level / 2
        verdicts.append(Verdict(mark.item, value, evidence=seen, reason=told))
        if mark.first is not None and mark.second is not None:
            for look, level, place in (("first", mark.first, first), ("second", mark.second, last)):
                verdicts.append(Verdict(f"{mark.item} ({look} look)", level / 2, evidence=(place,)))
    return tuple(verdicts)


class RubricOptions(Options, frozen=True):
    field: str = "rubric"
    """The task field that holds the rubric (or, for a conversation, a list of them)."""
    rubric: str = ""
    """A JSON file with one rubric for all tasks, instead of the field."""
    tier_weights: dict[str, float] = msgspec.field(default_factory=dict)
    """Other weights than 2, 1, 1 and 2."""
    truncation: Truncated = True
    """No extras below this share of the essentials or above this share of the pitfalls; 0.5."""
    saturation: bool | Limit = False
    """At most this many points of extras a tag; 1 where true."""
    clip: bool = False
    """Scores from 0 to 1 alone."""
    max_words: Count = 0
    """Longer answers are cut before they are judged; 0 is no limit."""
    equal_within: NonNegative = 0.0
    """Scores of a group that are closer become one; 0 leaves them. Makes the reward a group's."""
    mean_of_references: float | str | None = None
    """Mean score of reference models, or the task field that holds it; progress above counts more."""
    w_scale: Positive = 2.0
    name: str = "rubric"


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    chosen = read_options("rubric", options, RubricOptions)
    rubric = None
    if chosen.rubric:
        try:
            rubric = Rubric.from_dict(Path(chosen.rubric).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"judge 'rubric': {chosen.rubric} cannot be read: {error}.") from None
    same = ("field", "tier_weights", "truncation", "saturation", "clip", "max_words", "name")
    settings = {key: getattr(chosen, key) for key in same}
    scorer = RubricScorer(judge, rubric=rubric, **settings)
    if not chosen.equal_within and chosen.mean_of_references is None:
        return scorer
    return Stabilised(
        scorer,
        equal_within=chosen.equal_within,
        mean_of_references=chosen.mean_of_references,
        w_scale=chosen.w_scale,
    )


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


@dataclass(frozen=True)
class Marked:
    marks: Mapping[str, Mark] | None
    status: Status = Status.OK
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()

    def items(self, rubric: Rubric) -> list[MarkedItem]:
        levels = {name: mark.level for name, mark in (self.marks or {}).items()}
        return [
            MarkedItem(item.tier, levels.get(item.id), item.weight, item.tag, item.id)
            for item in rubric.items
        ]


async def mark_answer(
    judge: JudgeModel,
    rubric: Rubric,
    conversation: str,
    answer: str,
    *,
    about: tuple[str, ...] = (),
    media: Sequence[MediaPart] = (),
) -> Marked:
    """Marks by a judge, which looks for the pitfalls that it marked above 0 a second time."""

    async def ask(
        template: str, vote: int, only: Sequence[str] | None = None
    ) -> JudgeReply[dict[str, Mark]]:
        material = {
            "conversation": [("question", conversation)],
            "rubric": [("items", building.rubric_text(rubric, only))],
            "answer": [("answer", answer)],
        }
        read = partial(read_marks, rubric=rubric, answer=answer, only=only)
        kind = "rubric_confirm" if vote else "rubric_marks"
        return await building.ask(
            judge, kind, template, material, read, about=about, vote=vote, media=media
        )

    first = await ask("mark", 0)
    if first.verdict is None:
        return Marked(None, first.status, first.reason, first.evidence)
    marks = first.verdict
    pitfalls = [
        item.id for item in rubric.items if item.tier == Tier.PITFALL and marks[item.id].level
    ]
    if not pitfalls:
        return Marked(marks, evidence=first.evidence)
    again = await ask("confirm", 1, pitfalls)
    evidence = (*first.evidence, *again.evidence)
    if again.verdict is None:
        reason = f"pitfalls {', '.join(pitfalls)} could not be confirmed: {again.reason}"
        return Marked(None, again.status, reason, evidence)
    for name in pitfalls:
        one, two = marks[name], again.verdict[name].level
        level = min(one.level or 0, two or 0)
        word = "confirmed" if level else "not confirmed"
        reason = f"{word}: {one.level} at first, {two} at a second look; {one.reason}"
        marks[name] = Mark(name, level, one.quote, reason, one.level, two)
    return Marked(marks, evidence=evidence)


_MARK = free_table("item", "item_id", "quote", "reason", level=anything)


def read_marks(
    text: str, rubric: Rubric, answer: str, only: Sequence[str] | None = None
) -> dict[str, Mark]:
    """A mark for every item that was asked about; raises `Unreadable` where too few count.

    With `only` (the second look) every one of those must be there; else 90 % of the essential
    weight.
    """
    wanted = [item for item in rubric.items if only is None or item.id in only]
    said: dict[str, list[dict[str, Any]]] = {}
    for row in read_list(text, _MARK, (answer,)):
        said.setdefault(row["item"] or row["item_id"], []).append(row)
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
    if any(row["level"] != rows[0]["level"] for row in rows):
        return Mark(item, None, reason="two marks that differ")
    level, quote, reason = rows[0]["level"], rows[0]["quote"], rows[0]["reason"]
    if isinstance(level, bool) or level not in LEVELS:
        return Mark(item, None, quote, f"level {level!r:.20} is none of 0, 1 and 2")
    if level and not stands_in(quote, answer):
        shown = quote[:60] or "nothing"
        return Mark(item, None, quote, f"its quotation does not stand in the answer: {shown}")
    return Mark(item, int(level), quote, reason)
