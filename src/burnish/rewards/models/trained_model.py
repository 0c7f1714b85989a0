"""A trained model with a scalar head as a reward: of a whole answer, or of its steps.

The score of a conversation comes with its position among the scores of the held-out answers, where the
model was trained here, and with what would move it: the score without its markdown, and what twice the
length brings on the held-out pairs. Of a process reward model every step is a part of the reward with
its text as evidence, which stepwise credit hands to its tokens; a step's probability does not depend on
what follows it. Calls that wait at the same time are scored in one batch, on a GPU where there is one.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, Literal, NamedTuple, TypeVar, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from msgspec import Meta

from burnish.boundary import Count, Name, Share, public
from burnish.errors import RewardError, UserError
from burnish.lm.weights import files_identity, read_json
from burnish.numbers import sigmoid
from burnish.records import Evidence, Message, Response, Reward, Task
from burnish.rewards.checks.base import Check, CheckConfig
from burnish.rewards.checks.sections import Split, check_split, find_steps
from burnish.rewards.models.card import PROCESS_CARD, ProcessCard, read_card, read_process_card
from burnish.seeds import digest

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.lm.folder import LoadedModel

logger = logging.getLogger(__name__)

SETTLED_AFTER = 3
"""Rounds of the event loop without a new call after which a batch is closed."""

_CHECKPOINT = re.compile(r"step-\d{6,12}", re.ASCII)


class TrainedModelConfig(CheckConfig, frozen=True):
    """Where a trained model lies, and how it is run."""

    path: Name
    """A run that trained such a model, or a model's folder."""
    device: str = "auto"
    """auto: a GPU where there is one; else `cpu`, `cuda` or `cuda:1`."""
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    """auto: float32 on a CPU, what the folder says on a GPU."""
    batch_tokens: Count = 0
    """Tokens of one pass; 0: what the device likes."""


C = TypeVar("C", bound=TrainedModelConfig)
AskedT = TypeVar("AskedT")
SaidT = TypeVar("SaidT")


class TrainedModelReward(Check[C]):
    """Scores with a model that is loaded when the first response comes."""

    def __init__(self, config: C) -> None:
        super().__init__(config)
        self.folder = find_reward_model(config)
        if find_spec("torch") is not None:
            from burnish.lm.folder import check_head

            check_head(self.folder)  # Refused now, not once for each answer.

    @property
    def fingerprint(self) -> str:
        """Changes with the settings and with the model's files."""
        apart = {"weight": 1.0, "category": "", "path": ""}
        settings = msgspec.to_builtins(self.config) | apart
        return digest(files_identity("", self.folder), msgspec.json.encode(settings))

    @property
    def loaded(self) -> LoadedModel:
        """The model; two rewards with one model share it."""
        return _load(str(self.folder), self._files, self.config.device, self.config.dtype)

    @cached_property
    def _files(self) -> str:
        return files_identity("", self.folder)

    def no_score(self, response: Response, found: Sequence[float] | int) -> Reward | None:
        """The reward of an answer that is too long; scores that are not finite end the run."""
        if isinstance(found, int):
            reason = f"prompt and answer have {found} tokens, more than the model reads"
            return self.abstained(reason)
        if not all(map(math.isfinite, found)):
            raise RewardError(
                f"reward '{self.name}': the model's score is {found} for sample {response.id}; "
                f"expected finite numbers. Look at the weights in {self.folder}."
            )
        return None


@lru_cache(maxsize=2)
def _load(folder: str, files: str, device: str, dtype: str) -> LoadedModel:
    """The model of a folder; `files` tells versions apart."""
    import torch

    from burnish.lm.folder import load_model

    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    loaded = load_model(
        folder, dtype="float32" if dtype == "auto" and on_cpu else dtype, device=device
    )
    loaded.module.requires_grad_(False)
    return loaded


def newest_checkpoint(path: Path) -> Path:
    """The newest checkpoint of a run's folder; any other folder itself."""
    checkpoints = [
        one
        for one in (path / "checkpoints").glob("step-*")
        if _CHECKPOINT.fullmatch(one.name) and (one / "config.json").is_file()
    ]
    return max(checkpoints, key=lambda one: int(one.name[5:])) if checkpoints else path


def find_reward_model(reward: TrainedModelConfig) -> Path:
    """The folder of a reward's model: the newest checkpoint of a run, or the folder itself."""
    folder = newest_checkpoint(Path(reward.path).expanduser())
    config = read_json(folder / "config.json")
    kinds = config.get("architectures")
    kind = str(kinds[0]) if isinstance(kinds, list) and kinds else "no model"
    if not kind.endswith("ForSequenceClassification"):
        raise UserError(
            f"reward '{reward.title}': {folder} holds {kind}; expected a run of train.kind = "
            f"'{reward.__struct_config__.tag}', or a ...ForSequenceClassification with one label."
        )
    return folder


@dataclass(eq=False)
class _Call(Generic[AskedT, SaidT]):
    """Items of one caller that wait for their scores."""

    items: Sequence[AskedT]
    outcome: list[SaidT] | None = None


@dataclass
class _Waiting(Generic[AskedT, SaidT]):
    """Calls of one event loop; the holder of the lock scores all."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    calls: list[_Call[AskedT, SaidT]] = field(default_factory=list)

    async def settle(self) -> None:
        """Let every task that can run do so, until no new call has come for a few rounds."""
        quiet, seen = 0, len(self.calls)
        while quiet < SETTLED_AFTER:
            await anyio.lowlevel.checkpoint()
            quiet = quiet + 1 if len(self.calls) == seen else 0
            seen = len(self.calls)


class BatchQueue(Generic[AskedT, SaidT]):
    """Scores the items of all calls that wait at the same time in one batch, in a thread."""

    def __init__(self, work: Callable[[Sequence[AskedT]], list[SaidT]]) -> None:
        self.work = work
        self._waiting: tuple[object, _Waiting[AskedT, SaidT]] | None = None

    async def __call__(self, items: Sequence[AskedT]) -> list[SaidT]:
        """What the work says of these items."""
        loop = anyio.lowlevel.current_token()
        if self._waiting is None or self._waiting[0] != loop:
            self._waiting = (loop, _Waiting())
        waiting = self._waiting[1]
        call = _Call[AskedT, SaidT](items)
        waiting.calls.append(call)
        try:
            async with waiting.lock:
                if call.outcome is None:
                    await waiting.settle()
                    await self._score(waiting, call)
        finally:
            if call in waiting.calls:
                waiting.calls.remove(call)
        assert call.outcome is not None
        return call.outcome

    async def _score(self, waiting: _Waiting[AskedT, SaidT], mine: _Call[AskedT, SaidT]) -> None:
        calls, waiting.calls = waiting.calls, []
        try:
            said = await self._said(calls)
        except BaseException as error:
            # Each of the batch scores its own items: one bad text is not the others'.
            others = [one for one in calls if one is not mine]
            waiting.calls[:0] = others
            if not others or not isinstance(error, Exception):
                raise
            calls = [mine]
            said = await self._said(calls)
        for one in calls:
            one.outcome = [next(said) for _ in one.items]

    async def _said(self, calls: Sequence[_Call[AskedT, SaidT]]) -> Iterator[SaidT]:
        every = [item for one in calls for item in one.items]
        return iter(await anyio.to_thread.run_sync(self.work, every))


# --- whole answers


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

    path: Name
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
        if (self.folder / PROCESS_CARD).is_file():
            raise UserError(
                f"reward '{self.name}': {self.folder} scores steps; expected kind = 'process_reward_model'."
            )
        self.card = read_card(self.folder)
        """What is known of the model's scores; None for models of others."""
        if config.scale == "percentile" and self.card is None:
            raise UserError(
                f"reward '{self.name}': scale is 'percentile' and {self.folder} has no reward_model.json; "
                "expected scale = 'score', or a model trained here with evaluation.prompts."
            )

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """One reward for each response; those that are too long for the model have none."""
        talks = [(*task.messages, *response.messages) for response in responses]
        plain = [self._without_markdown(talk) for talk in talks]
        found = iter(await self._batched([*talks, *(talk for talk in plain if talk is not None)]))
        scores = [next(found) for _ in talks]
        without = [None if talk is None else next(found) for talk in plain]
        return [self._reward(*one) for one in zip(responses, scores, without, strict=True)]

    def _reward(
        self, response: Response, found: float | int, without: float | int | None
    ) -> Reward:
        silent = self.no_score(response, found if isinstance(found, int) else [found])
        if silent is not None:
            return silent
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


# --- steps of an answer


SPLIT_OF: dict[str, Split] = {"\n": "lines", "\n\n": "blank_lines"}
"""How steps end in answers, by the separator that a model was trained with."""
Aggregate = Literal["min", "product", "last", "mean"]


class ProcessRewardModelConfig(TrainedModelConfig, frozen=True, tag="process_reward_model"):
    """The steps of an answer scored by a process reward model, as one value from 0 to 1."""

    split: Split = "blank_lines"
    """Where steps end: at blank lines, at every line, or where one of `headings` begins."""
    headings: tuple[str, ...] = ()
    """How steps begin, with `split = "headings"`: `rule:`, `why:`."""
    aggregate: Aggregate = "min"
    """How the probabilities of the steps become one value."""

    def check(self) -> None:
        check_split(self.split, self.headings)


class Asked(NamedTuple):
    """What a response is scored behind, and its steps."""

    before: tuple[Message, ...]
    steps: tuple[str, ...]


class ProcessRewardModelReward(TrainedModelReward[ProcessRewardModelConfig]):
    """Scores the steps of responses."""

    def __init__(self, config: ProcessRewardModelConfig) -> None:
        super().__init__(config)
        card = read_process_card(self.folder)
        if card is None:
            raise UserError(
                f"reward '{self.name}': {self.folder} has no process_reward_model.json; expected a run of "
                "train.kind = 'process_reward_model', or kind = 'reward_model' here."
            )
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
        cut = find_steps.plain(text, self.config.split, self.config.headings)
        steps = tuple(text[step.start : step.end].strip() for step in cut)
        return Asked((*task.messages, *turns[:-1]), steps)

    def _reward(self, response: Response, asked: Asked, found: list[float] | int) -> Reward:
        silent = self.no_score(response, found)
        if silent is not None or isinstance(found, int):
            return cast(Reward, silent)
        probabilities = [sigmoid(score) for score in found]
        steps = enumerate(zip(probabilities, asked.steps, strict=True), start=1)
        parts = tuple(
            Reward(f"step {number}", value, evidence=(Evidence(self.name, text),))
            for number, (value, text) in steps
        )
        value = step_value.plain(probabilities, self.config.aggregate)
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
        fitting = [row for row in rows if len(row.ids) <= longest]
        ids, places = [row.ids for row in fitting], [row.places for row in fitting]
        found = iter(score_places(loaded, ids, places, self.config.batch_tokens))
        return [next(found) if len(row.ids) <= longest else len(row.ids) for row in rows]


@public
def step_value(
    probabilities: Annotated[Sequence[Share], Meta(min_length=1)], aggregate: Aggregate = "min"
) -> float:
    """One value from the probabilities of an answer's steps: `min`, `product`, `last` or `mean`."""
    if aggregate == "last":
        return probabilities[-1]
    if aggregate == "mean":
        return math.fsum(probabilities) / len(probabilities)
    return min(probabilities) if aggregate == "min" else math.prod(probabilities)
