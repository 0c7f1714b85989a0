"""The usable labelled rows of a task set, their passes, and what the trainings of a scalar head share.

    rows = LabelledSet(tasks, read, what="pairs", bad="drop", setting="train.bad_pairs", seed=7)
    rows.draw(step, 32)

What a step draws follows from the seed and the step alone. Rows that cannot be used are refused in one
line, or left out in one line. `reward_model` reads the scalar head once an answer and compares two
answers, `process_reward_model` reads it behind each step of a solution; both freeze the language-model
head, which nothing reads, and are saved as what transformers calls `...ForSequenceClassification`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.lm.scalar_head import ScalarHead, freeze_language_head
from burnish.records import Task
from burnish.store import StoredEvaluation, StoredSample
from burnish.tasks.base import TaskSet, content_key, epoch_order
from burnish.training.algorithm import Algorithm, Setup

logger = logging.getLogger(__name__)

TEMPLATE_TOKENS = 64
"""What a chat template may add to a turn, at most; texts far below the limit are not measured."""
LOOK = 4096
"""Training tasks of an endless set that are looked through."""
SHOWN = 3
"""Bad rows that a message names."""

RowT = TypeVar("RowT")


class UnusableRow(Exception):
    """A row that cannot be used; the text says why, for all rows of its kind."""


class LabelledSet(Generic[RowT]):
    def __init__(
        self,
        tasks: TaskSet,
        read: Callable[[Task], RowT],
        *,
        what: str,
        bad: str,
        setting: str,
        seed: int = 0,
        keeps: Callable[[RowT], bool] = lambda row: True,
        fits: Callable[[RowT], bool] = lambda row: True,
        max_tokens: int = 0,
        together: bool = True,
        look: int = LOOK,
    ) -> None:
        """`read` raises `UnusableRow`; `keeps` leaves rows out without a word.

        `fits` says whether a row is within `max_tokens`, which only a message names here. `what`
        rows are called and `setting`, the key that drops bad ones, are for messages too. With
        `together`, an epoch has the rows of one prompt side by side. `look`: tasks of an endless set
        that are looked through, and drawn again and again.
        """
        self.tasks, self.read, self.seed = tasks, read, seed
        self._what, self._bad, self._setting = what, bad, setting
        self._keeps, self._fits, self._max_tokens = keeps, fits, max_tokens
        size = tasks.train_size or look
        shown = tasks.sample(size)
        kept = self._usable(shown)
        if not kept:
            raise UserError(
                f"task set '{tasks.name}': none of the {size} tasks looked at is a usable "
                f"{what.removesuffix('s')}; expected at least one. See which fields a row gives with "
                "burnish try, and raise train.max_tokens where they are too long."
            )
        groups: dict[str, list[int]] = {}
        for position in kept:
            key = content_key(shown[position].messages) if together else str(position)
            groups.setdefault(key, []).append(position)
        self._groups = tuple(tuple(group) for group in groups.values())
        self.size = len(kept)
        """Rows of one epoch."""
        self._lap = lru_cache(maxsize=2)(self._order)

    def draw(self, step: int, count: int) -> list[RowT]:
        """The rows of one step, the same whenever it is asked for."""
        found = []
        for number in range(step * count, (step + 1) * count):
            lap, place = divmod(number, self.size)
            found.append(self.read(self.tasks.train(self._lap(lap)[place])))
        return found

    def first(self, count: int) -> list[RowT]:
        """Some training rows, in the order in which the first epoch draws them."""
        order = self._lap(0)[:count]
        return [self.read(self.tasks.train(position)) for position in order]

    def held_out(self, limit: int) -> list[RowT]:
        """Rows that training never sees."""
        tasks = self.tasks.held_out(limit)
        return [self.read(tasks[place]) for place in self._usable(tasks)]

    def _order(self, lap: int) -> tuple[int, ...]:
        """Positions of one epoch: prompts in another order each time, their rows side by side."""
        order = epoch_order(self.seed, lap, len(self._groups))
        return tuple(position for place in order for position in self._groups[place])

    def _usable(self, tasks: Sequence[Task]) -> list[int]:
        """Places of the tasks that can be used; the others are refused or dropped in one line."""
        kept: list[int] = []
        bad: list[tuple[str, str]] = []
        for place, task in enumerate(tasks):
            try:
                row = self.read(task)
                if not self._keeps(row):
                    continue
                if not self._fits(row):
                    raise UnusableRow(f"more than {self._max_tokens} tokens")
            except UnusableRow as why:
                bad.append((task.id, str(why)))
                continue
            kept.append(place)
        if bad:
            self._report(bad, len(tasks))
        return kept

    def _report(self, bad: Sequence[tuple[str, str]], looked_at: int) -> None:
        kinds = Counter(why for _, why in bad)
        shown = "; ".join(f"{count} with {why}" for why, count in kinds.most_common(SHOWN))
        first = ", ".join(name for name, _ in bad[:SHOWN])
        line = (
            f"task set '{self.tasks.name}': {len(bad)} of {looked_at} {self._what} cannot be used: "
            f"{shown} (first: {first})"
        )
        if self._bad == "refuse":
            raise UserError(f"{line}. Mend the data, or set {self._setting} = 'drop'.")
        logger.warning("%s; they are left out.", line)


RenderedT = TypeVar("RenderedT")


class Batch(NamedTuple, Generic[RenderedT]):
    """The rows of a step as tokens."""

    step: int
    rendered: RenderedT


def in_place(values_P: Tensor, places_P: Tensor, size: int) -> Tensor:
    """Values of a pass at their places in the step, float64 (N,) for N = `size`."""
    empty_N = torch.zeros(size, dtype=torch.float64, device=values_P.device)
    return empty_N.index_put((places_P,), values_P.detach().double())


def over_rows(
    setup: Setup,
    cut: Callable[[int], Iterator[MicroT]],
    size: int,
    values: Callable[[MicroT], tuple[Tensor, Sequence[Tensor]]],
) -> list[Tensor]:
    """Values of all rows, (`size`, ...) each, over all processes and without a graph.

    `cut` gives this process's passes of about so many tokens; `values` of a pass are places among
    the rows, and some tensors with a value for each.
    """

    def work() -> list[Tensor]:
        found: list[Tensor] = []
        for micro in cut(setup.batches.tokens):
            places, several = values(micro)
            for number, value in enumerate(several):
                if len(found) <= number:
                    found.append(value.new_zeros(size, *value.shape[1:]))
                found[number].index_copy_(0, places, value)
        return found

    with torch.no_grad():
        mine = setup.batches.within_memory(work)
    return _gathered(setup, mine) if setup.world.size > 1 else mine


def _gathered(setup: Setup, mine: Sequence[Tensor]) -> list[Tensor]:
    """The sums of all processes' values; one without a row of its own knows no shape."""
    world, device = setup.world, setup.trainable.device
    everyone = world.gather([[value.cpu() for value in mine]], world.size)
    known = [values for values in everyone if values]
    return [torch.stack(values).sum(0).to(device) for values in zip(*known, strict=True)]


MicroT = TypeVar("MicroT")


class RowAlgorithm(Algorithm[Batch[RenderedT], MicroT], Generic[RowT, RenderedT, MicroT]):
    """Draws labelled rows and cuts them into passes; `settings` have `batch`, the rows of a step."""

    samples_answers: ClassVar[bool] = False

    rows: LabelledSet[RowT]

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.settings = settings
        self._newest = setup.done - 1
        self._ahead: Batch[RenderedT] | None = None
        self.tokenizer = setup.trainable.loaded.tokenizer
        longest = setup.trainable.module.longest_row(0)
        self.max_tokens = min(settings.max_tokens or longest, longest)

    # --- what a kind says

    @abstractmethod
    def render(self, rows: Sequence[RowT]) -> RenderedT:
        """Rows as tokens."""

    @abstractmethod
    def cut(self, rendered: RenderedT, tokens: int) -> Iterator[MicroT]:
        """This process's share in passes of about `tokens` tokens."""

    # --- steps

    @cached_property
    def held_out(self) -> list[RowT]:
        """Held-out rows, read once: what is left out is said once."""
        return self.rows.held_out(self.setup.config.evaluation.prompts)

    def batch(self, step: int) -> Batch[RenderedT]:
        ahead, self._ahead = self._ahead, None
        self._newest = step
        return ahead if ahead is not None and ahead.step == step else self._drawn(step)

    def meanwhile(self) -> None:
        """Render the next step's rows while the GPU is busy: text becomes tokens more slowly."""
        step = self._newest + 1
        if step < self.setup.steps and self._ahead is None:
            self._ahead = self._drawn(step)

    def _drawn(self, step: int) -> Batch[RenderedT]:
        return Batch(step, self.render(self.rows.draw(step, self.settings.batch)))

    def micro_batches(self, batch: Batch[RenderedT], tokens: int) -> Iterator[MicroT]:
        return self.cut(batch.rendered, tokens)

    def compute(
        self,
        rendered: RenderedT,
        size: int,
        values: Callable[[MicroT], tuple[Tensor, Sequence[Tensor]]],
    ) -> list[Tensor]:
        """Values of all rows of a step, by `over_rows`."""
        return over_rows(self.setup, lambda tokens: self.cut(rendered, tokens), size, values)

    def store(self, step: int, samples: Callable[[], list[StoredSample]]) -> None:
        """Keep the samples of a step, once."""
        if self.setup.world.is_main and self.setup.store.rollouts(step) is None:
            self.setup.store.append_rollouts(step, samples())


class ScoreHeadAlgorithm(RowAlgorithm[RowT, RenderedT, MicroT]):
    """Trains a scalar head and the model under it."""

    can_be_stage: ClassVar[bool] = False
    trains_score_head: ClassVar[bool] = True

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.done = setup.done
        loaded = setup.trainable.loaded
        if loaded.score_head is None:
            loaded.score_head = ScalarHead.fresh(
                std=float(loaded.config.get("initializer_range") or 0.02),
                seed=setup.seeds.for_("score head"),
                like=loaded.module.head_weight,
            )
        self.head = loaded.score_head
        self.head.requires_grad_(True)
        freeze_language_head(loaded.module)

    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        return [("score.weight", self.head.weight)]

    def newest_evaluation(self) -> tuple[StoredEvaluation, list[StoredSample]] | None:
        """The newest held-out evaluation up to the step that is saved, with its samples."""
        before = [e for e in self.setup.store.evaluations("held_out") if e.step <= self.done]
        if not before:
            return None
        newest = max(before, key=lambda found: found.step)
        samples = self.setup.store.samples(step=newest.step, split="eval:held_out")
        return newest, list(samples)
