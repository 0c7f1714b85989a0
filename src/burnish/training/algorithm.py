"""What one kind of training does in a step; the trainer does everything else.

An algorithm says what a batch is, how it is cut into micro-batches, what the loss of one is, and
what to report. The trainer (`training/trainer.py`) owns the optimiser, accumulation, guards, the
learning rate, evaluation times, checkpoints, exact resume, the store, events and the forecast.

To add one, write `training/algorithms/NAME.py` and its settings in `config/train_kinds.py`:

    class Mine(TrainSection, frozen=True, tag="mine"):       # config/train_kinds.py, and in `Train`
        batch: Positive = 32

    class MineAlgorithm(Algorithm[list[Trajectory], PackedBatch]):     # training/algorithms/mine.py
        def __init__(self, setup: Setup, settings: Mine) -> None: ...
        def batch(self, step): return self.experts.take(step, self.settings.batch)
        def micro_batches(self, batch, tokens): return self.setup.batches.split(batch, tokens=tokens)
        def loss(self, model, micro): ...

    ALGORITHM = MineAlgorithm                                # what `train.kind = "mine"` builds

An algorithm outside of the package needs no line anywhere: `train = { kind = "function", path =
"my_file.py:MyAlgorithm", options = { ... } }`; its `settings` are then the options, a dict.

A step calls, in this order: `batch`, `updates`, then for each update `micro_batches` and `loss`,
`meanwhile`, `inspect`, `gradients`; at the end `finish`. What a resumed run needs is in `state`. Randomness
comes from `setup.seeds` by purpose and step, never from a generator that is carried along, so that
a step repeated after a crash is the same step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from burnish.errors import BurnishError, GuardTripped, UserError
from burnish.store import StoredSample
from burnish.training.data import AnswerBudget, Cursor, PromptReport
from burnish.training.forecast import Workload, given_rows
from burnish.training.watchdog import EventLoop

if TYPE_CHECKING:
    from burnish.config.schema import Config
    from burnish.lm.base import RemoteSampler, Sampler
    from burnish.lm.call_log import PaidReplies
    from burnish.lm.local import LocalLM
    from burnish.records import Reward, Task, Trajectory
    from burnish.rewards.combine import Weighted
    from burnish.seeds import Seeds
    from burnish.store import RunStore
    from burnish.tasks.base import TaskSet
    from burnish.training.data import Data
    from burnish.training.devices import World
    from burnish.training.events import Event, HeldOut
    from burnish.training.trainable import OtherModel, Trainable
    from burnish.training.update import MicroBatcher

BatchT = TypeVar("BatchT")
MicroT = TypeVar("MicroT")


@dataclass(frozen=True)
class Loss:
    """The loss of one micro-batch. All numbers stay on the device; the trainer reads them at once."""

    total: Tensor
    """0-d, divided by the normaliser of the whole update (all its micro-batches on all processes),
    so that the gradients of micro-batches add up to those of the update."""
    ids: Sequence[str] = ()
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached 0-d terms of `total`; become the metrics `loss/NAME`."""
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached (B, ...) values, a row for each of `ids`; a guard names the rows that are not finite."""
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached; added up over micro-batches, updates and processes for `StepResult.sums`."""
    largest: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached 0-d; the maximum over the same becomes `StepResult.largest`."""
    critic_rows: Mapping[str, Tensor] = field(default_factory=dict)
    """As `rows`, of values that a critic said: a guard blames the critic for them."""


@dataclass(frozen=True)
class StepResult:
    updates: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    """`total` and the parts, means over the updates."""
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    """The sums of `Loss.sums`, float64 on the CPU."""
    largest: Mapping[str, float] = field(default_factory=dict)
    gradient_norm: float = 0.0
    """Before clipping, mean over the updates."""
    weight_norm: float = 0.0


class StepUndone(BurnishError):
    """Ends the run before a step is done, without an update; the next start does the step again.

    The algorithm's state is that from before the step.
    """


@dataclass(frozen=True)
class StepReport:
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that follow from config and seed; a repeated step must bring the same ones."""
    timings: Mapping[str, float] = field(default_factory=dict)
    is_reread: bool = False
    """The batch was read back from an interrupted start instead of sampled."""
    stop: str = ""
    """Why the run should end here; empty: it goes on."""


class AlgorithmState(NamedTuple):
    values: Mapping[str, Any] = {}
    """JSON-able."""
    tensors: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class HeldOutScores:
    """A held-out evaluation: one mark for each held-out item, None where it could not be scored."""

    marks: Sequence[float | None]
    measure: str = "reward"
    """What a mark is: `reward` or `accuracy` (0 or 1), higher is better, or `loss`, `bits_per_byte` or
    `log_spectral_distance`, lower is better."""
    samples: Sequence[StoredSample] = ()
    beside: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class Parts:
    """What all stages of a run share; what needs a model comes after the first is loaded."""

    config: Config
    data: Data
    """Opens task sets; `data.tasks` are the run's own."""
    scorer: Weighted | None
    world: World
    judges: Sequence[Any] = ()
    loop: EventLoop = field(default_factory=EventLoop)
    length_of: Callable[[Task], int] = lambda task: 0
    prompts: PromptReport = field(default_factory=lambda: PromptReport(0, 0))
    answers: AnswerBudget = field(default_factory=lambda: AnswerBudget(0, ""))
    paid: PaidReplies | None = None
    remote: RemoteSampler | None = None


@dataclass(kw_only=True)
class Setup(Parts):
    steps: int
    trainable: Trainable
    batches: MicroBatcher
    store: RunStore
    """Write only where `world.is_main`."""
    seeds: Seeds
    stage: str = ""
    """Name of the stage; empty for the main training."""
    done: int = 0
    """Steps of earlier starts."""
    weight_version: int = 0
    """Optimiser steps behind the weights."""
    copy_gradients: Callable[[], list[Tensor]] = list
    """Copies of the gradient sums of this process as they stand between two micro-batches."""
    decoding: str = ""
    """How a diffusion model under training writes, such as `steps=8`; empty: as its folder says."""
    _is_sent: bool = False
    _canary: Sequence[float] = ()
    """The log-probs of the servers' canary under the weights that they were sent last."""

    @property
    def folder(self) -> Path:
        return self.store.folder / "stages" / self.stage if self.stage else self.store.folder

    @property
    def lm(self) -> Sampler:
        """What samples: the model under training, or a server that has its weights.

        Call `ready_sampler` before sampling.
        """
        return self.local if self.remote is None else self.remote

    @cached_property
    def local(self) -> LocalLM:
        """The model under training as a sampler, made when it is first asked for."""
        from burnish.lm.local import LocalLM

        lm = LocalLM(self.trainable.loaded, decoding=self.decoding)
        lm.weight_version = self.weight_version
        self.batches.release = lm.release
        return lm

    def judging(self, part: str) -> None:
        """Say to which part of the run the judge calls from now on belong."""
        if self.paid is not None:
            self.paid.begin(part)

    def moved(self, version: int) -> None:
        """The weights are now those of this version; a server that samples gets them."""
        self.weight_version = version
        if "local" in self.__dict__:
            self.local.weight_version = version
        if self._is_sent:
            self._send()

    def ready_sampler(self) -> None:
        """See to it that a server which samples was given this run's weights."""
        if self.remote is not None and not self._is_sent:
            self._send()

    def current_lm(self) -> Sampler:
        """A sampler with the very weights of now, for an evaluation."""
        if self.remote is not None and (not self._is_sent or self.remote.staleness):
            self._send()
        return self.lm

    async def send_again(self) -> None:
        """Give the servers the weights once more: one may have been started again without them."""
        if self.remote is not None and self.world.is_main:
            weights = self.trainable.weights()
            await self.remote.update_weights(self.weight_version, weights, self._canary)

    def _send(self) -> None:
        assert self.remote is not None
        with self.trainable.whole():
            ids = self.remote.canary
            self._canary = self.local.score_batch([(ids[:1], ids[1:])])[0].logprobs
            if self.world.is_main:
                self.loop.run(self.send_again)
        self._is_sent = True
        self.remote.follow(self.weight_version, self.world.first(self.remote.served))

    def cursor(self, tasks: TaskSet) -> Cursor:
        """Walks through the tasks whose prompts fit."""
        rollout, tokenizer = self.config.rollout, self.trainable.loaded.tokenizer
        return Cursor(
            tasks=tasks,
            length_of=self.length_of,
            max_prompt_tokens=rollout.max_prompt_tokens,
            drop_overlong=rollout.overlong_prompts == "drop",
            prepare=(lambda tasks: tokenizer.prefetch(task.messages for task in tasks))
            if tokenizer.media
            else None,
        )


HELD_OUT = "eval:held_out"


def stored(
    step: int,
    split: str,
    rows: Iterable[tuple[Task, Trajectory, Reward]],
    advantages: Sequence[float | None] | None = None,
    keep: Sequence[bool] | None = None,
) -> list[StoredSample]:
    """Samples of a step, numbered in their order; those of `train` are kept in the loss, or as told."""
    return [
        StoredSample(
            step=step,
            split=split,
            index=index,
            task=task,
            trajectory=trajectory,
            reward=reward,
            advantage=None if advantages is None else advantages[index],
            keep=split == "train" if keep is None else keep[index],
        )
        for index, (task, trajectory, reward) in enumerate(rows)
    ]


class Preparation(NamedTuple):
    """Work before the first step; the trainer does it under its guards."""

    what: str
    work: Callable[[], Event]


class Algorithm(ABC, Generic[BatchT, MicroT]):
    """One kind of training. Subclass it: what is not overridden does nothing or the usual thing."""

    samples_prompts: ClassVar[bool] = False
    """Its steps sample answers to prompts, and the store keeps them for a run that is continued. Prompts
    over `rollout.max_prompt_tokens` are refused, or dropped, before the first step."""
    samples_answers: ClassVar[bool] = True
    """False where its steps only read given answers: no limit is then chosen for answers."""
    can_be_stage: ClassVar[bool] = True
    """False where it stores rollouts, which the store knows by the main training's steps."""

    trains_diffusion: ClassVar[bool] = False
    """Whether it trains masked diffusion models; others are then refused."""

    trains_text: ClassVar[bool] = True
    """False where its model is no language model: `open_model` then opens it, and tasks, prompts and a
    tokenizer play no part."""

    shares_model: ClassVar[bool] = False
    """Whether several processes may hold its model together: it trains the run's language model alone,
    with a loss of rows, and looks at no gradient."""

    trains_score_head: ClassVar[bool] = False
    """Whether it may start from a reward model, which has no language-model head."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        """Called once the model is loaded; `settings` are those of the table `train`."""
        self.setup = setup

    @classmethod
    def check(cls, config: Config, settings: Any, data: Data) -> None:
        """Refuse bad settings and data; every task set opened here counts for the fingerprint."""
        for fault in cls.faults(config, settings, data):
            raise UserError(fault)

    @classmethod
    def faults(cls, config: Config, settings: Any, data: Data) -> Iterator[str]:
        """What is wrong with settings and data, in one line each."""
        return iter(())

    @classmethod
    def open_model(cls, path: Path, dtype: torch.dtype, device: torch.device) -> OtherModel:
        raise NotImplementedError

    @abstractmethod
    def batch(self, step: int) -> BatchT:
        """What the step trains on: rollouts with rewards, demonstrations, pairs, waveforms.

        Asked twice for a step, also by another process after a crash, it gives the same batch.
        """

    @abstractmethod
    def micro_batches(self, batch: BatchT, tokens: int) -> Iterator[MicroT]:
        """This process's share of one update in passes of about `tokens` tokens.

        Called again with fewer tokens when the device is full. The next micro-batch is asked for
        after the backward pass of the one before.
        """

    @abstractmethod
    def loss(self, model: Any, micro: MicroT) -> Loss:
        """The forward pass and the loss; must not wait for the device."""

    def updates(self, batch: BatchT) -> Sequence[BatchT]:
        """The batch in the parts that are one optimiser step each (epochs and mini-batches).

        Called once a step, with the weights of its beginning; an empty list skips the update.
        """
        return [batch]

    def gradients(self, update: BatchT, sums: Sequence[Tensor]) -> None:
        """Look at the gradient sums of one update, over all processes, before the optimiser step."""

    def inspect(self, step: int, sums: Mapping[str, Tensor], ids: Sequence[str]) -> None:
        """Look at this process's `Loss.sums` of one update before the optimiser step; may trip."""

    def meanwhile(self) -> None:
        """Work for the host while the GPU finishes the passes of an update."""

    def finish(self, step: int, batch: BatchT, result: StepResult) -> StepReport:
        """Store what belongs to the step and report it."""
        return StepReport()

    def prepare(self) -> Iterator[Preparation]:
        """What is done before the first step of every start, also a resumed one: measure, calibrate."""
        return iter(())

    def workload(self) -> Workload:
        rollout = self.setup.config.rollout
        # Which settings an algorithm of another's own hears on is not known here.
        prompt = self.setup.prompts.longest
        return given_rows(rollout.prompts, rollout.max_tokens, prompt=prompt, key="")

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The model on held-out data; None where there is nothing to evaluate."""
        return None

    def evaluated(self, found: HeldOut) -> Iterator[Event]:
        """After an evaluation: a curriculum may go on."""
        return iter(())

    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Named parameters beside the model's, such as a value head; trained and checkpointed."""
        return ()

    def write(self, folder: Path) -> None:
        """Write what belongs to the trained model beside its weights, such as that head."""

    def state(self) -> AlgorithmState:
        """What the next step needs of the ones before."""
        return AlgorithmState()

    def restore(self, state: AlgorithmState) -> None:
        """Go on from a checkpoint's `state()`."""

    def save_batch(self, place: Path, error: GuardTripped) -> bool:
        """Keep the batch that a guard stopped, where `batch(step)` would not give it again.

        False where there is nothing yet that could be replayed; `place` is then not made.
        """
        place.mkdir(parents=True, exist_ok=True)
        return True

    def load_batch(self, place: Path, step: int) -> BatchT:
        """The batch that `save_batch` kept, for `burnish replay`."""
        return self.batch(step)


AnyAlgorithm = Algorithm[Any, Any]
