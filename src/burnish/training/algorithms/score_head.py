"""What the trainings of a scalar head share: the head, drawing and rendering, passes without a graph.

`reward_model` reads the head once an answer and compares two answers, `process_reward_model` reads
it behind each step of a solution. Both draw labelled rows, freeze the language-model head, which
nothing reads, and are saved as what transformers calls `...ForSequenceClassification`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from burnish.lm.scalar_head import ScalarHead, freeze_language_head
from burnish.training.algorithm import Algorithm, Setup
from burnish.training.labelled import LabelledSet
from burnish.training.row_passes import Batch, over_rows

RowT = TypeVar("RowT")
RenderedT = TypeVar("RenderedT")
MicroT = TypeVar("MicroT")


class ScoreHeadAlgorithm(Algorithm[Batch[RenderedT], MicroT], Generic[RowT, RenderedT, MicroT]):
    """Trains a scalar head and the model under it on labelled rows."""

    samples_answers: ClassVar[bool] = False
    can_be_stage: ClassVar[bool] = False
    trains_score_head: ClassVar[bool] = True

    rows: LabelledSet[RowT]

    def __init__(self, setup: Setup, settings: Any) -> None:
        """`settings` have `batch`, the rows of a step, and `max_tokens`."""
        self.setup, self.settings = setup, settings
        self.done = setup.done
        self._newest = setup.done - 1
        self._ahead: Batch[RenderedT] | None = None
        loaded = setup.trainable.loaded
        self.tokenizer = loaded.tokenizer
        if loaded.score_head is None:
            loaded.score_head = ScalarHead.fresh(
                std=float(loaded.config.get("initializer_range") or 0.02),
                seed=setup.seeds.for_("score head"),
                like=loaded.module.head_weight,
            )
        self.head = loaded.score_head
        self.head.requires_grad_(True)
        freeze_language_head(loaded.module)
        longest = loaded.module.longest_row(0)
        self.max_tokens = min(settings.max_tokens or longest, longest)

    # --- what a kind says

    @abstractmethod
    def render(self, rows: Sequence[RowT]) -> RenderedT:
        """Rows as tokens."""

    @abstractmethod
    def cut(self, rendered: RenderedT, tokens: int) -> Iterator[MicroT]:
        """This process's share in passes of about `tokens` tokens."""

    # --- steps

    def batch(self, step: int) -> Batch[RenderedT]:
        ahead, self._ahead = self._ahead, None
        self._newest = step
        if ahead is not None and ahead.step == step:
            return ahead
        return self._drawn(step)

    def meanwhile(self) -> None:
        """Render the next step's rows while the GPU is busy: text becomes tokens more slowly."""
        step = self._newest + 1
        if step < self.setup.steps and self._ahead is None:
            self._ahead = self._drawn(step)

    def _drawn(self, step: int) -> Batch[RenderedT]:
        return Batch(step, self.render(self.rows.draw(step, self.settings.batch)))

    def micro_batches(self, batch: Batch[RenderedT], tokens: int) -> Iterator[MicroT]:
        return self.cut(batch.rendered, tokens)

    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        return [("score.weight", self.head.weight)]

    # --- passes without a graph

    def compute(
        self,
        rendered: RenderedT,
        size: int,
        values: Callable[[MicroT], tuple[Tensor, Sequence[Tensor]]],
    ) -> list[Tensor]:
        """Values of all rows of a step, by `over_rows`."""
        return over_rows(self.setup, lambda tokens: self.cut(rendered, tokens), size, values)
