"""A trained model with a scalar head as a scorer: finding, loading, and batches of waiting calls.

`reward_model` scores whole conversations with it, `process_reward_model` the steps of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from msgspec import Meta

from burnish.errors import UserError
from burnish.lm.weights import files_identity, read_json
from burnish.rewards.checks.base import Check, CheckConfig, require
from burnish.seeds import digest

if TYPE_CHECKING:
    from burnish.lm.folder import LoadedModel

SETTLED_AFTER = 3
"""Rounds of the event loop without a new call after which a batch is closed."""

_CHECKPOINT = re.compile(r"step-\d{6,12}", re.ASCII)


class TrainedModelConfig(CheckConfig, frozen=True):
    """Where a trained model lies, and how it is run."""

    path: Annotated[str, Meta(min_length=1)]
    """A run that trained such a model, or a model's folder."""
    device: str = "auto"
    """auto: a GPU where there is one; else `cpu`, `cuda` or `cuda:1`."""
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    """auto: float32 on a CPU, what the folder says on a GPU."""
    batch_tokens: int = 0
    """Tokens of one pass; 0: what the device likes."""


C = TypeVar("C", bound=TrainedModelConfig)
AskedT = TypeVar("AskedT")
SaidT = TypeVar("SaidT")


class TrainedModelReward(Check[C]):
    """Scores with a model that is loaded when the first response comes."""

    def __init__(self, config: C) -> None:
        super().__init__(config)
        require(config, config.batch_tokens >= 0, "batch_tokens is negative; expected 0 or more.")
        self.folder = find_reward_model(config)
        if find_spec("torch") is not None:
            from burnish.lm.folder import check_head

            check_head(self.folder)  # Refused now, not once for each answer.

    @property
    def fingerprint(self) -> str:
        """Changes with the settings and with the model's files."""
        settings = msgspec.structs.replace(self.config, weight=1.0, category="", path="")
        return digest(files_identity("", self.folder), msgspec.json.encode(settings))

    @property
    def loaded(self) -> LoadedModel:
        """The model; two rewards with one model share it."""
        return _load(str(self.folder), self._files, self.config.device, self.config.dtype)

    @cached_property
    def _files(self) -> str:
        return files_identity("", self.folder)


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
            f"'{reward.__struct_config__.tag}', or the folder of a ...ForSequenceClassification "
            "with one label."
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
