"""The usable labelled rows of a task set, their passes, and what the trainings of a scalar head share.

What a step draws follows from the seed and the step alone. Rows that cannot be used are refused, or
left out, in one line.
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
from burnish.training.algorithm import HELD_OUT, Algorithm, Setup

logger = logging.getLogger(__name__)

TEMPLATE_TOKENS = 64
"""What a chat template may add to a turn, at most; texts far below the limit are not measured."""
LOOK = 4096
SHOWN = 3

RowT = TypeVar("RowT")


class UnusableRow(Exception):
    """A row that cannot be used; the text says why, for all rows of its kind."""


def surely_fit(texts: Sequence[str], messages: int, limit: int) -> bool:
    """Whether texts are within a limit of tokens, as each holds at least one byte of them."""
    most = sum(len(text.encode(errors="replace")) for text in texts)
    return most + messages * TEMPLATE_TOKENS <= limit


class LabelledSet(Generic[RowT]):
    def __init__(
        self,
        tasks: TaskSet,
        read: Callable[[Task], RowT],
        *,
        what: str,
        bad: str,
        seed: int = 0,
        keeps: Callable[[RowT], bool] = lambda row: True,
        fits: Callable[[RowT], bool] = lambda row: True,
        max_tokens: int = 0,
        together: bool = True,
        look: int = LOOK,
    ) -> None:
        """`read` raises `UnusableRow`; `keeps` leaves rows out without a word.

        `fits` says whether a row is within `max_tokens`, which only a message names here. `what`
        rows are called ends the name of the key that drops bad ones. With
        `together`, an epoch has the rows of one prompt side by side. `look`: tasks of an endless set
        that are looked through, and drawn again and again.
        """
        self.tasks, self.read = tasks, read
        self._what, self._bad = what, bad
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
        self.size = len(kept)

        @lru_cache(maxsize=2)
        def lap(number: int) -> tuple[int, ...]:
            """Prompts in another order each time, their rows side by side."""
            order = epoch_order(seed, number, len(groups))
            by_prompt = list(groups.values())
            return tuple(position for place in order for position in by_prompt[place])

        self._lap = lap

    def draw(self, step: int, count: int) -> list[RowT]:
        found = []
        for number in range(step * count, (step + 1) * count):
            lap, place = divmod(number, self.size)
            found.append(self.read(self.tasks.train(self._lap(lap)[place])))
        return found

    def first(self, count: int) -> list[RowT]:
        """Some training rows, in the order in which the first epoch draws them."""
        return [self.read(self.tasks.train(position)) for position in self._lap(0)[:count]]

    def held_out(self, limit: int) -> list[RowT]:
        tasks = self.tasks.held_out(limit)
        return [self.read(tasks[place]) for place in self._usable(tasks)]

    def _usable(self, tasks: Sequence[Task]) -> list[int]:
        """Places of the tasks that can be used; the others are refused or dropped in one line."""
        kept: list[int] = []
        bad: list[tuple[str, str]] = []
        for place, task in enumerate(tasks):
            try:
                row = self.read(task)
                if self._keeps(row):
                    if not self._fits(row):
                        raise UnusableRow(f"more than {self._max_tokens} tokens")
                    kept.append(place)
            except UnusableRow as why:
                bad.append((task.id, str(why)))
        if not bad:
            return kept
        kinds = Counter(why for _, why in bad)
        shown = "; ".join(f"{count} with {why}" for why, count in kinds.most_common(SHOWN))
        first = ", ".join(name for name, _ in bad[:SHOWN])
        line = (
            f"task set '{self.tasks.name}': {len(bad)} of {len(tasks)} {self._what} cannot be used: "
            f"{shown} (first: {first})"
        )
        if self._bad == "refuse":
            raise UserError(f"{line}. Mend the data, or set train.bad_{self._what} = 'drop'.")
        logger.warning("%s; they are left out.", line)
        return kept


RenderedT = TypeVar("RenderedT")


class Batch(NamedTuple, Generic[RenderedT]):
    """The rows of a step as tokens."""

    step: int
    rendered: RenderedT


def in_place(values_P: Tensor, places_P: Tensor, size: int) -> Tensor:
    """Values of a pass at their places in the step, float64 (N,) for N = `size`."""
    empty_N = torch.zeros(size, dtype=torch.float64, device=values_P.device)
    return empty_N.index_put((places_P,), values_P.detach().double())


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

    @abstractmethod
    def render(self, rows: Sequence[RowT]) -> RenderedT:
        """Rows as tokens."""

    @abstractmethod
    def cut(self, rendered: RenderedT, tokens: int) -> Iterator[MicroT]:
        """This process's share in passes of about `tokens` tokens."""

    @cached_property
    def held_out(self) -> list[RowT]:
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
        """Values of all rows, (`size`, ...) each, over all processes and without a graph.

        `values` of a pass are places among the rows, and some tensors with a value for each.
        """
        setup, world = self.setup, self.setup.world

        def work() -> list[Tensor]:
            found: list[Tensor] = []
            for micro in self.cut(rendered, setup.batches.tokens):
                places, several = values(micro)
                for number, value in enumerate(several):
                    if len(found) <= number:
                        found.append(value.new_zeros(size, *value.shape[1:]))
                    found[number].index_copy_(0, places, value)
            return found

        with torch.no_grad():
            mine = setup.batches.within_memory(work)
        if world.size == 1:
            return mine
        everyone = world.gather([[value.cpu() for value in mine]], world.size)
        # A process without a row of its own knows no shape.
        known = zip(*filter(None, everyone), strict=True)
        return [torch.stack(values).sum(0).to(setup.trainable.device) for values in known]

    def store(self, step: int, samples: Callable[[], list[StoredSample]]) -> None:
        if self.setup.world.is_main and self.setup.store.rollouts(step) is None:
            self.setup.store.append_rollouts(step, samples())


class ScoreHeadAlgorithm(RowAlgorithm[RowT, RenderedT, MicroT]):
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
        store = self.setup.store
        before = [e for e in store.evaluations("held_out") if e.step <= self.done]
        if not before:
            return None
        newest = max(before, key=lambda found: found.step)
        return newest, list(store.samples(step=newest.step, split=HELD_OUT))
