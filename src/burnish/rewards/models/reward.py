"""A trained reward model as a reward: `kind = "reward_model"`.

    [[rewards]]
    kind = "reward_model"
    path = "runs/rm"            # a run, or any folder of a ...ForSequenceClassification with one label

The value is the model's score of the whole conversation. It comes with its position among the
scores of the held-out answers, where the model was trained here, and with what would move it: the
score without its markdown, and what twice the length brings on the held-out pairs. Calls that wait
at the same time are scored in one batch, on a GPU where there is one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from burnish.errors import RewardError
from burnish.records import Evidence, Message, Response, Reward, Task
from burnish.rewards.checks.base import require
from burnish.rewards.models.card import RewardModelCard, read_card
from burnish.rewards.models.process_card import PROCESS_CARD
from burnish.rewards.models.trained_model import (
    BatchQueue,
    TrainedModelConfig,
    TrainedModelReward,
)

if TYPE_CHECKING:
    from torch import Tensor

_MARKS = (
    (re.compile(r"^[ \t]*```[^\n]*\n?", re.M), ""),
    (re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+", re.M), ""),
    (re.compile(r"^([ \t]*)(?:[-*+]|\d{1,3}[.)])[ \t]+", re.M), r"\1"),
    (re.compile(r"^[ \t]*>[ \t]?", re.M), ""),
    # Up to the next mark of its kind: many that are never closed would cost their square.
    (re.compile(r"(\*\*|__)(?=\S)((?:(?!\1).)+?)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])"), r"\1"),
    (re.compile(r"`([^`\n]+)`"), r"\1"),
)
"""Fences, headings, list marks, quotes, bold, italics, inline code; what they hold stays."""


class RewardModelConfig(TrainedModelConfig, frozen=True, tag="reward_model"):
    """The score of a trained reward model, with its position on held-out data; any finite value."""

    path: Annotated[str, Meta(min_length=1)]
    """A run of `train.kind = "reward_model"`, or a model's folder."""
    scale: Literal["score", "percentile"] = "score"
    """The score itself, or its position among those of the held-out answers, from 0 to 1."""
    explain: bool = True
    """Also score answers without their markdown: up to one more pass."""


class RewardModelReward(TrainedModelReward[RewardModelConfig]):
    """Scores responses with a model that is loaded when the first one comes."""

    def __init__(self, config: RewardModelConfig) -> None:
        super().__init__(config)
        # Looked up at each call: what scores may be replaced.
        self._batched = BatchQueue[tuple[Message, ...], float | int](
            lambda talks: self.scores(talks)
        )
        require(
            config,
            not (self.folder / PROCESS_CARD).is_file(),
            f"{self.folder} scores steps, not whole answers; expected kind = "
            "'process_reward_model'.",
        )
        read_card(self.folder)  # A damaged one is refused now, not once for each answer.
        if config.scale == "percentile":
            require(
                config,
                self.card is not None,
                f"scale is 'percentile' and {self.folder} has no reward_model.json with held-out "
                "scores; expected scale = 'score', or a model trained here with evaluation.prompts.",
            )

    @cached_property
    def card(self) -> RewardModelCard | None:
        """What is known of the model's scores; None for models of others."""
        return read_card(self.folder)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """One reward for each response; those that are too long for the model have none."""
        talks = [(*task.messages, *response.messages) for response in responses]
        plain = [self._without_markdown(talk) for talk in talks]
        wanted = [*talks, *(talk for talk in plain if talk is not None)]
        found = await self._batched(wanted)
        rest = iter(found[len(talks) :])
        without = [None if talk is None else next(rest) for talk in plain]
        return [
            self._reward(*one) for one in zip(responses, found[: len(talks)], without, strict=True)
        ]

    def _reward(
        self, response: Response, found: float | int, without: float | int | None
    ) -> Reward:
        if isinstance(found, int):
            reason = f"prompt and answer have {found} tokens, more than the model reads"
            return self.abstained(reason)
        if not math.isfinite(found):
            raise RewardError(
                f"reward '{self.name}': the model's score is {found} for sample {response.id}; "
                f"expected a finite number. Look at the weights in {self.folder}."
            )
        card, lines = self.card, [f"score {found:.4g}"]
        if card is not None:
            lines.append(
                f"percentile {card.percentile(found):.0f} of {2 * card.pairs} held-out answers"
            )
        if isinstance(without, float):
            lines.append(f"markdown {found - without:+.3g}: without it the score is {without:.4g}")
        if card is not None and card.length_slope is not None:
            lines.append(f"length {card.length_slope:+.3g} for twice the text, on held-out pairs")
        evidence = tuple(Evidence(self.name, line) for line in lines)
        value = found
        if self.config.scale == "percentile" and card is not None:
            value = card.percentile(found) / 100
        return Reward(self.name, value, evidence=evidence)

    def _without_markdown(self, talk: tuple[Message, ...]) -> tuple[Message, ...] | None:
        """The conversation with a plain last turn; None where it is plain already."""
        if not self.config.explain or not talk or not isinstance(talk[-1].content, str):
            return None
        text = plain_text(talk[-1].content)
        changed = msgspec.structs.replace(talk[-1], content=text)
        return None if text == talk[-1].content else (*talk[:-1], changed)

    def scores(self, talks: Sequence[tuple[Message, ...]]) -> list[float | int]:
        """The score of each conversation; its length in tokens where the model cannot read it."""
        from burnish.lm.scalar_head import score_rows, scored_ids

        loaded = self.loaded
        rows = [scored_ids(loaded.tokenizer, talk) for talk in talks]
        longest = loaded.module.longest_row(0)
        fitting = [row for row in rows if len(row) <= longest]
        found = iter(score_rows(loaded, fitting, self.config.batch_tokens))
        return [next(found) if len(row) <= longest else len(row) for row in rows]

    def hidden(self, talks: Sequence[tuple[Message, ...]]) -> Tensor:
        """The last hidden states of conversations that the model can read, float32 (N, D)."""
        from burnish.lm.scalar_head import hidden_rows, scored_ids

        loaded = self.loaded
        rows = [scored_ids(loaded.tokenizer, talk) for talk in talks]
        return hidden_rows(loaded, rows, self.config.batch_tokens).float().cpu()


def plain_text(text: str) -> str:
    """The text without marks of markdown: headings, lists, bold, italics, quotes and code."""
    for pattern, instead in _MARKS:
        text = pattern.sub(instead, text)
    return text
