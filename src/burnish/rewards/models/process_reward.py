"""A trained process reward model as a reward: `kind = "process_reward_model"`.

    [[rewards]]
    kind = "process_reward_model"
    path = "runs/prm"
    aggregate = "min"           # the answer is as good as its worst step

The answer is cut into steps, each step gets the probability that it is right, and these become one
value. Every step is a part of the reward with its text as evidence, which stepwise credit
(`policy.advantage = { kind = "stepwise", split = "blank_lines", ... }`) hands to its tokens. A step's
probability does not depend on what follows it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from burnish.arguments import as_list, as_number, as_word
from burnish.errors import RewardError
from burnish.numbers import sigmoid
from burnish.records import Evidence, Message, Response, Reward, Task
from burnish.rewards.checks.base import require
from burnish.rewards.checks.steps import Split, check_split, find_steps
from burnish.rewards.models.process_card import ProcessCard, read_process_card
from burnish.rewards.models.trained_model import (
    BatchQueue,
    TrainedModelConfig,
    TrainedModelReward,
)

logger = logging.getLogger(__name__)

SPLIT_OF: dict[str, Split] = {"\n": "lines", "\n\n": "blank_lines"}
"""How steps end in answers, by the separator that a model was trained with."""
AGGREGATES = ("min", "product", "last", "mean")


class ProcessRewardModelConfig(TrainedModelConfig, frozen=True, tag="process_reward_model"):
    """The steps of an answer scored by a process reward model, as one value from 0 to 1."""

    split: Split = "blank_lines"
    """Where steps end: at blank lines, at every line, or where one of `headings` begins."""
    headings: tuple[str, ...] = ()
    """How steps begin, with `split = "headings"`: `rule:`, `why:`."""
    aggregate: Literal["min", "product", "last", "mean"] = "min"
    """How the probabilities of the steps become one value."""


class Asked(NamedTuple):
    """What a response is scored behind, and its steps."""

    before: tuple[Message, ...]
    steps: tuple[str, ...]


class ProcessRewardModelReward(TrainedModelReward[ProcessRewardModelConfig]):
    """Scores the steps of responses."""

    def __init__(self, config: ProcessRewardModelConfig) -> None:
        super().__init__(config)
        check_split(config.split, config.headings)
        card = read_process_card(self.folder)
        require(
            config,
            card is not None,
            f"{self.folder} has no process_reward_model.json, so it scores whole answers; expected "
            "a run of train.kind = 'process_reward_model', or kind = 'reward_model' here.",
        )
        assert card is not None
        self.card: ProcessCard = card
        trained = SPLIT_OF.get(card.separator)
        if trained is not None and trained != config.split:
            logger.warning(
                "reward '%s': steps end at %s here and ended at %s in training (separator %r); "
                "split = '%s' reads answers as it was trained.",
                *(self.name, config.split, trained, card.separator, trained),
            )
        # Looked up at each call: what scores may be replaced.
        self._batched = BatchQueue[Asked, list[float] | int](lambda asked: self.scores(asked))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """One reward for each response, its steps as parts; none where the model cannot read it."""
        asked = [self._asked(task, response) for response in responses]
        written = [one for one in asked if one.steps]
        found = iter(await self._batched(written))
        return [
            self._reward(response, one, next(found))
            if one.steps
            else self.abstained("the answer is empty, so it has no steps")
            for response, one in zip(responses, asked, strict=True)
        ]

    def _asked(self, task: Task, response: Response) -> Asked:
        turns = response.messages
        while len(turns) > 1 and turns[-1].role != "assistant":
            turns = turns[:-1]
        text = turns[-1].text
        cut = find_steps(text, self.config.split, self.config.headings)
        steps = tuple(text[step.start : step.end].strip() for step in cut)
        return Asked((*task.messages, *turns[:-1]), steps)

    def _reward(self, response: Response, asked: Asked, found: list[float] | int) -> Reward:
        if isinstance(found, int):
            reason = f"prompt and answer have {found} tokens, more than the model reads"
            return self.abstained(reason)
        if not all(map(math.isfinite, found)):
            raise RewardError(
                f"reward '{self.name}': the model's scores are {found} for sample {response.id}; "
                f"expected finite numbers. Look at the weights in {self.folder}."
            )
        probabilities = [sigmoid(score) for score in found]
        parts = tuple(
            Reward(f"step {number}", value, evidence=(Evidence(self.name, text),))
            for number, (value, text) in enumerate(
                zip(probabilities, asked.steps, strict=True), start=1
            )
        )
        value = step_value(probabilities, self.config.aggregate)
        lines = [f"{self.config.aggregate} of {len(parts)} steps"]
        below = [n for n, p in enumerate(probabilities, start=1) if p < self.card.threshold]
        flagged = f"step {below[0]} is the first" if below else "no step is"
        source = ", the held-out threshold" if self.card.solutions else ""
        lines.append(f"{flagged} below {self.card.threshold:.3g}{source}")
        evidence = tuple(Evidence(self.name, line) for line in lines)
        return Reward(self.name, value, parts=parts, evidence=evidence)

    def scores(self, asked: Sequence[Asked]) -> list[list[float] | int]:
        """The scores of each answer's steps; its length in tokens where the model cannot read it."""
        from burnish.lm.scalar_head import score_places, step_row

        loaded, separator = self.loaded, self.card.separator
        rows = [step_row(loaded.tokenizer, one.before, one.steps, separator) for one in asked]
        longest = loaded.module.longest_row(0)
        ids = [row.ids for row in rows]
        fitting = [place for place, row in enumerate(ids) if len(row) <= longest]
        found = score_places(
            loaded,
            [ids[place] for place in fitting],
            [rows[place].places for place in fitting],
            self.config.batch_tokens,
        )
        said = dict(zip(fitting, found, strict=True))
        return [said.get(place, len(row)) for place, row in enumerate(ids)]


def step_value(probabilities: Sequence[float], aggregate: str = "min") -> float:
    """One value from the probabilities of an answer's steps: `min`, `product`, `last` or `mean`.

    >>> step_value([0.5, 0.25, 0.8])
    0.25
    """
    as_word("aggregate", aggregate, AGGREGATES)
    values = [
        as_number("probabilities", one, low=0, high=1)
        for one in as_list("probabilities", probabilities, least=1)
    ]
    if aggregate == "last":
        return values[-1]
    if aggregate == "mean":
        return math.fsum(values) / len(values)
    return min(values) if aggregate == "min" else math.prod(values)
