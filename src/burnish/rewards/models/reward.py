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
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from msgspec import Meta

from burnish.errors import RewardError, UserError
from burnish.lm.weights import files_identity, read_json
from burnish.records import Evidence, Message, Response, Reward, Task
from burnish.rewards.checks.base import Check, CheckConfig, require
from burnish.rewards.models.card import RewardModelCard, read_card
from burnish.seeds import digest

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.lm.folder import LoadedModel

SETTLED_AFTER = 3
"""Rounds of the event loop without a new call after which a batch is closed."""

_MARKS = (
    (re.compile(r"^[ \t]*```[^\n]*\n?", re.M), ""),
    (re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+", re.M), ""),
    (re.compile(r"^([ \t]*)(?:[-*+]|\d{1,3}[.)])[ \t]+", re.M), r"\1"),
    (re.compile(r"^[ \t]*>[ \t]?", re.M), ""),
    (re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])"), r"\1"),
    (re.compile(r"`([^`\n]+)`"), r"\1"),
)
"""Fences, headings, list marks, quotes, bold, italics, inline code; what they hold stays."""


class RewardModelConfig(CheckConfig, frozen=True, tag="reward_model"):
    """The score of a trained reward model, with its position on held-out data; any finite value."""

    path: Annotated[str, Meta(min_length=1)]
    """A run of `train.kind = "reward_model"`, or a model's folder."""
    scale: Literal["score", "percentile"] = "score"
    """The score itself, or its position among those of the held-out answers, from 0 to 1."""
    explain: bool = True
    """Also score answers without their markdown: up to one more pass."""
    device: str = "auto"
    """auto: a GPU where there is one; else `cpu`, `cuda` or `cuda:1`."""
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    """auto: float32 on a CPU, what the folder says on a GPU."""
    batch_tokens: int = 0
    """Tokens of one pass; 0: what the device likes."""


class RewardModelReward(Check[RewardModelConfig]):
    """Scores responses with a model that is loaded when the first one comes."""

    def __init__(self, config: RewardModelConfig) -> None:
        super().__init__(config)
        require(config, config.batch_tokens >= 0, "batch_tokens is negative; expected 0 or more.")
        self.folder = find_reward_model(Path(config.path).expanduser(), config.title)
        self._queue: tuple[object, _Queue] | None = None
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

    @property
    def fingerprint(self) -> str:
        """Changes with the settings and with the model's files."""
        settings = msgspec.structs.replace(self.config, weight=1.0, category="", path="")
        return digest(files_identity("", self.folder), msgspec.json.encode(settings))

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

    async def _batched(self, talks: Sequence[tuple[Message, ...]]) -> list[float | int]:
        """Scores of conversations, in one batch with those of other waiting calls."""
        loop = anyio.lowlevel.current_token()
        if self._queue is None or self._queue[0] != loop:
            self._queue = (loop, _Queue())
        queue = self._queue[1]
        call = _Call(talks)
        queue.waiting.append(call)
        try:
            async with queue.lock:
                if call.outcome is None:
                    await queue.settle()
                    calls, queue.waiting = queue.waiting, []
                    try:
                        every = [talk for one in calls for talk in one.talks]
                        scores = iter(await anyio.to_thread.run_sync(self.scores, every))
                    except BaseException:
                        # Others of the batch score themselves: one bad text is not theirs.
                        queue.waiting[:0] = [one for one in calls if one is not call]
                        raise
                    for one in calls:
                        one.outcome = [next(scores) for _ in one.talks]
        finally:
            if call in queue.waiting:
                queue.waiting.remove(call)
        assert call.outcome is not None
        return call.outcome

    def scores(self, talks: Sequence[tuple[Message, ...]]) -> list[float | int]:
        """The score of each conversation; its length in tokens where the model cannot read it."""
        from burnish.lm.scalar_head import scored_ids
        from burnish.lm.scored_rows import score_rows

        loaded = _load(str(self.folder), self._files, self.config.device, self.config.dtype)
        rows = [scored_ids(loaded.tokenizer, talk) for talk in talks]
        longest = loaded.module.longest_row(0)
        fitting = [row for row in rows if len(row) <= longest]
        found = iter(score_rows(loaded, fitting, self.config.batch_tokens))
        return [next(found) if len(row) <= longest else len(row) for row in rows]

    def hidden(self, talks: Sequence[tuple[Message, ...]]) -> Tensor:
        """The last hidden states of conversations that the model can read, float32 (N, D)."""
        from burnish.lm.scalar_head import scored_ids
        from burnish.lm.scored_rows import hidden_rows

        loaded = _load(str(self.folder), self._files, self.config.device, self.config.dtype)
        rows = [scored_ids(loaded.tokenizer, talk) for talk in talks]
        return hidden_rows(loaded, rows, self.config.batch_tokens).float().cpu()

    @cached_property
    def _files(self) -> str:
        return files_identity("", self.folder)


_CHECKPOINT = re.compile(r"step-\d{6,12}", re.ASCII)


@dataclass(eq=False)
class _Call:
    """Conversations that wait for their scores."""

    talks: Sequence[tuple[Message, ...]]
    outcome: list[float | int] | None = None


@dataclass
class _Queue:
    """Calls of one event loop that wait to be scored together; the holder of the lock scores all."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    waiting: list[_Call] = field(default_factory=list)

    async def settle(self) -> None:
        """Let every task that can run do so, until no new call has come for a few rounds."""
        quiet, seen = 0, len(self.waiting)
        while quiet < SETTLED_AFTER:
            await anyio.lowlevel.checkpoint()
            quiet = quiet + 1 if len(self.waiting) == seen else 0
            seen = len(self.waiting)


@lru_cache(maxsize=2)
def _load(folder: str, files: str, device: str, dtype: str) -> LoadedModel:
    """The model of a folder; two rewards with one model share it. `files` tells versions apart."""
    import torch

    from burnish.lm.folder import load_model

    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    loaded = load_model(
        folder, dtype="float32" if dtype == "auto" and on_cpu else dtype, device=device
    )
    loaded.module.requires_grad_(False)
    return loaded


def find_reward_model(path: Path, name: str) -> Path:
    """The folder of a reward model: the newest checkpoint of a run, or the folder itself."""
    checkpoints = [
        one
        for one in (path / "checkpoints").glob("step-*")
        if _CHECKPOINT.fullmatch(one.name) and (one / "config.json").is_file()
    ]
    folder = max(checkpoints, key=lambda one: int(one.name[5:])) if checkpoints else path
    config = read_json(folder / "config.json")
    kinds = config.get("architectures")
    kind = str(kinds[0]) if isinstance(kinds, list) and kinds else "no model"
    if not kind.endswith("ForSequenceClassification"):
        raise UserError(
            f"reward '{name}': {folder} holds {kind}; expected a run of train.kind = "
            "'reward_model', or the folder of a ...ForSequenceClassification with one label."
        )
    return folder


def plain_text(text: str) -> str:
    """The text without marks of markdown: headings, lists, bold, italics, quotes and code."""
    for pattern, instead in _MARKS:
        text = pattern.sub(instead, text)
    return text
