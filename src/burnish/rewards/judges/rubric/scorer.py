"""A rubric as a reward: every item marked by a judge, the score made by formula.

    scorer = RubricScorer(judge, truncation=True, saturation=True)
    (reward,) = await scorer.score(task, [response])
    reward.value, reward.parts        # the score, and what each tier earned
    reward.verdicts                   # one an item: level / 2, the quoted words, why it is missing

The rubric stands in a field of the task, or is given once for all tasks. The judge sees the
conversation, the items and the answer, never weights, provenance or other fields of the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from burnish.errors import UserError
from burnish.records import Evidence, Message, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.prompting import request_of
from burnish.rewards.judges.rubric import wording
from burnish.rewards.judges.rubric.items import Rubric
from burnish.rewards.judges.rubric.marking import Mark, Marked, mark_answer
from burnish.rewards.judges.rubric.score import (
    Explained,
    Saturation,
    Truncation,
    dialogue_score,
    explain,
)
from burnish.rewards.scorer import Scope, gather
from burnish.seeds import digest

_CJK = "\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}](?:[^\W{_CJK}]|['’-])*")
CONCURRENT = 32


class Turn(NamedTuple):
    """One answer of a conversation, with what was said before it and its rubric."""

    conversation: str
    answer: str
    rubric: Rubric


class RubricScorer:
    """A point scorer by rubric; a conversation with a rubric a turn is worth the mean over turns."""

    scope = Scope.POINT

    def __init__(
        self,
        judge: JudgeModel,
        *,
        rubric: Rubric | None = None,
        field: str = "rubric",
        confirm: JudgeModel | None = None,
        tier_weights: Mapping[str, float] | None = None,
        truncation: Truncation | Sequence[float] | float | bool | None = None,
        saturation: Saturation | Sequence[Any] | float | bool | None = None,
        clip: bool = False,
        max_words: int = 0,
        name: str = "rubric",
        weight: float = 1.0,
    ) -> None:
        """`confirm` looks for marked pitfalls a second time; the judge itself where None.

        `max_words` cuts longer answers before they are judged; 0 is no limit.
        """
        if max_words < 0:
            raise UserError(f"reward '{name}': max_words is {max_words}; expected 0 or more.")
        self.judge, self.confirm, self.rubric, self.field = judge, confirm, rubric, field
        self.settings: dict[str, Any] = {
            "tier_weights": tier_weights,
            "truncation": truncation,
            "saturation": saturation,
            "clip": clip,
        }
        explain([("essential", 0)], **self.settings)  # refuses settings that have no meaning
        self.max_words, self.name, self.weight = max_words, name, weight
        self.needs = frozenset() if rubric else frozenset({field})

    @property
    def fingerprint(self) -> str:
        """Changes with the judges, the words they are asked in, the formula's settings and a rubric
        that is given once."""
        judges = [self.judge.fingerprint, self.confirm.fingerprint if self.confirm else ""]
        rubric = self.rubric.hash if self.rubric else self.field
        settings = (repr(sorted(self.settings.items())), str(self.max_words))
        return digest(*judges, rubric, *settings, wording.MARK, wording.CONFIRM)

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
        turns = _turns(task, response, given)
        calls = [
            partial(self._turn, turn, (task.id, response.id, *_place(n, turns)), sight)
            for n, turn in enumerate(turns)
        ]
        rewards = await gather(calls)
        return rewards[0] if len(rewards) == 1 else _dialogue(self.name, rewards)

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
                confirm=self.confirm,
            )
        else:
            known.append(Evidence(self.name, "the answer is empty: nothing is met, nobody asked"))
            marked = Marked({item.id: Mark(item.id, 0) for item in turn.rubric.items})
        evidence = (*known, *marked.evidence)
        if marked.marks is None:
            return Reward.failed(self.name, marked.status, marked.reason, evidence=evidence)
        found = explain(marked.items(turn.rubric), **self.settings)
        verdicts = _verdicts(marked.marks, len(evidence) - 1, len(known))
        if found.score is None:
            return Reward.failed(
                self.name, Status.ABSTAIN, found.reason, evidence=evidence, verdicts=verdicts
            )
        return Reward(
            self.name,
            found.score,
            parts=_parts(found),
            evidence=evidence,
            verdicts=verdicts,
            reason=_reason(found),
        )


def limit_words(text: str, most: int) -> tuple[str, int]:
    """The first `most` words of a text and how many were left out; 0 is no limit.

    A Chinese character counts as a word.
    """
    found = list(_WORD.finditer(text)) if most else []
    if len(found) <= most:
        return text, 0
    return text[: found[most - 1].end()], len(found) - most


def read_rubric(given: Any) -> Rubric:
    """A rubric, or what JSON made of one."""
    return given if isinstance(given, Rubric) else Rubric.from_dict(given)


def _turns(task: Task, response: Response, given: Any) -> list[Turn]:
    """The one answer to the whole conversation, or every answer to what came before it."""
    if not isinstance(given, list | tuple):
        return [Turn(request_of(task), response.text, read_rubric(given))]
    answers = response.info.get("turns")
    asked = [message for message in task.messages if message.role == "user"]
    if not isinstance(answers, list | tuple) or not len(answers) == len(given) == len(asked):
        count = len(answers) if isinstance(answers, list | tuple) else 0
        raise UserError(
            f"task {task.id} has {len(given)} rubrics and {len(asked)} questions, sample "
            f"{response.id} {count} answers; expected as many of each, the answers in "
            "`info['turns']`."
        )
    turns, before = [], list[Message]()
    for question, answer, rubric in zip(asked, answers, given, strict=True):
        before.append(question)
        turns.append(
            Turn(
                request_of(replace(task, messages=tuple(before))), str(answer), read_rubric(rubric)
            )
        )
        before.append(Message("assistant", str(answer)))
    return turns


def _place(number: int, turns: Sequence[Turn]) -> tuple[str, ...]:
    return (f"turn {number + 1}",) if len(turns) > 1 else ()


def _dialogue(name: str, rewards: Sequence[Reward]) -> Reward:
    """The mean over turns; a turn without a score leaves the conversation without one."""
    parts = tuple(
        Reward(
            f"turn {n + 1}",
            r.value,
            r.status,
            1.0,
            r.parts,
            r.evidence,
            r.verdicts,
            reason=r.reason,
        )
        for n, r in enumerate(rewards)
    )
    value = dialogue_score([part.value for part in parts])
    if value is None:
        silent = next(part for part in parts if part.value is None)
        reason = f"{silent.name} has no score: {silent.reason}"
        return Reward.failed(name, silent.status, reason, parts=parts)
    return Reward(name, value, parts=parts, reason=f"mean of {len(parts)} turns")


def _parts(found: Explained) -> tuple[Reward, ...]:
    """What each tier earned, as a share; tiers without a marked item have no part."""
    return tuple(
        Reward(tier, total.share, reason=f"{total.earned:g} of {total.possible:g} points")
        for tier, total in found.tiers.items()
        if total.share is not None
    )


def _reason(found: Explained) -> str:
    told = list(found.fired)
    if found.missing:
        told.append(f"not marked: {', '.join(found.missing)}")
    return "; ".join(told)


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
