"""A model that answers an item's prompt, and a scorer that marks the answer.

    scorer = Answering(JudgeModel(lm), Instructions(InstructionsConfig()))
    judged = await judge_items(scorer, blanks(items), judge="smollm2", file=file)

The answer is asked for as a verdict is: a budget, a cache and a record hold for it, what failed has
a status and no value, and the text is kept as evidence of the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from msgspec.structs import replace as changed

from burnish.bench.items import Item, responses_of
from burnish.records import Response, Reward, Task
from burnish.rewards.fingerprint import fingerprint
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.questions import Question
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.seeds import digest


class Answering:
    """Writes a text in the place of each response and lets a point scorer mark it."""

    scope = Scope.POINT

    def __init__(self, model: JudgeModel, scorer: Scorer) -> None:
        self.name, self.needs = scorer.name, scorer.needs
        self.model, self.scorer = model, scorer

    @property
    def fingerprint(self) -> str:
        return digest(type(self).__name__, self.model.fingerprint, fingerprint(self.scorer))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        calls = [partial(self._one, task, place, blank) for place, blank in enumerate(responses)]
        return await gather(calls)

    async def _one(self, task: Task, place: int, blank: Response) -> Reward:
        question = Question("answer", task.messages, about=(task.id, blank.id), vote=place)
        heard = await self.model.ask(question, str)
        if heard.verdict is None:
            return Reward.failed(self.name, heard.status, heard.reason, evidence=heard.evidence)
        written = changed(blank, text=heard.verdict, finish=heard.replies[-1].finish)
        (reward,) = await checked(self.scorer, task, [written])
        return changed(reward, evidence=(*reward.evidence, *heard.evidence))


def blanks(items: Sequence[Item]) -> list[Item]:
    """The items with one empty response each, for `Answering` to write."""
    return [replace(item, responses=responses_of(item.id, [""])) for item in items]
