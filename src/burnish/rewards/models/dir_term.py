"""DIR as a term of a loss on pairs: keep one attribute of a pair out of the scores.

Each term has a head, an optimiser, a queue and a lambda of its own; all are in the checkpoint. The head
is trained once a step on the hidden states of all its pairs, then the penalty is the covariance over all
of them, whatever the micro-batches and processes. From DIR (arXiv 2512.23461).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from burnish.boundary import Count, NonNegative, Positive
from burnish.errors import ArgumentError, did_you_mean
from burnish.rewards.models.bias_attributes import (
    ATTRIBUTES,
    Attribute,
    Ties,
    attribute_labels,
    attribute_report,
    by_count,
    markdown_marks,
)
from burnish.rewards.models.term import (
    FunctionTerm,
    Pair,
    PairStates,
    Term,
    TermConfig,
    TermContext,
    TermLoss,
    TermState,
)
from burnish.source import find_function

if TYPE_CHECKING:
    from torch import Tensor

REPORTED = 1000
"""Pairs that the report before the first step looks at."""

logger = logging.getLogger(__name__)


Clamp = Literal["none", "zero"]
Representation = Literal["difference", "concat"]
MOST_WIDE = 65_536
"""Most units of a head, and most classes: more are a slip of the pen, and fill the memory."""


class BiasSettings(TermConfig, frozen=True):
    """How DIR keeps one attribute out of a reward model."""

    lam: NonNegative = 1.0
    """Weight of the penalty, by global batch; the start, where `target_auc` moves it."""
    classes: Annotated[int, Meta(ge=2, le=MOST_WIDE)] = 2
    """Of your own function; `agreement` has three."""
    head_width: Annotated[int, Meta(ge=1, le=MOST_WIDE)] = 1024
    """Hidden units of the head."""
    head_steps: Count = 5
    """Updates of the head for each step."""
    head_learning_rate: Positive = 1e-4
    """Of the head's own AdamW."""
    queue: Count = 256
    """Past pairs that a batch is compared with; 0 for none."""
    clamp: Clamp = "none"
    """What becomes of a penalty below 0."""
    target_auc: Annotated[float, Meta(ge=0.5, lt=1.0)] | None = None
    """Move lambda until the head finds the attribute only this well; 0.55 is almost not."""
    lam_rate: Positive = 0.1
    """How fast lambda follows its target."""


class DirTerm(BiasSettings, frozen=True, tag="dir"):
    """Take from the hidden states what they say about an attribute of the pair (DIR)."""

    attribute: str = "length"
    """length (tokens), markdown, agreement, position, or your function of a pair by path,
    `my_file.py:name`: a class from 0 on, or None where a pair says nothing."""
    ties: Ties = "drop"
    """Pairs that are equal in length or markdown: left out, or counted as 0 as published."""
    warmup_steps: Count = 0
    """Steps in which only the head learns, before the penalty begins; 80 for DPO as published."""
    representation: Representation = "difference"
    """What the head sees of the two hidden states."""

    def check(self) -> None:
        if self.attribute not in ATTRIBUTES and ":" not in self.attribute:
            raise ArgumentError(
                f"attribute: got '{self.attribute}', expected {', '.join(ATTRIBUTES)} or "
                f"my_file.py:function.{did_you_mean(self.attribute, ATTRIBUTES)}"
            )

    def build(self, context: TermContext) -> BiasTerm:
        return BiasTerm(self, context)

    def labelled(self, tokens: Callable[[str], int]) -> Attribute:
        """The attribute that the settings name."""
        if self.attribute == "length":
            return by_count("length", tokens, self.ties)
        if self.attribute == "markdown":
            return by_count("markdown", markdown_marks, self.ties)
        if self.attribute in ATTRIBUTES:
            return ATTRIBUTES[self.attribute]
        function = find_function(self.attribute, "attribute", Path())
        return Attribute(self.title, function, self.classes, self.attribute)


class BiasTerm(Term):
    """One attribute's head and penalty inside a training on pairs."""

    def __init__(self, settings: DirTerm, context: TermContext) -> None:
        from burnish.rewards.models.dir import BiasPenalty

        super().__init__(context)
        self.attribute = settings.labelled(context.tokens)
        self.penalty = BiasPenalty(
            context.name,
            replace(settings, classes=self.attribute.classes),
            context.width,
            representation=settings.representation,
            device=context.device,
            seed=context.seed,
        )
        self.warmup_steps = settings.warmup_steps
        self.step = -1
        self.metrics: Mapping[str, float] = {}
        # How common the attribute is among the first pairs, and how far it alone predicts them.
        (row,) = attribute_report(list(self.context.pairs(REPORTED)), [self.attribute])
        self._report = {f"share_{place}": share for place, share in enumerate(row.shares)}
        self._report["ties"] = row.ties
        if row.predicts is not None:
            self._report["predicts"] = row.predicts
            logger.info(
                "attribute '%s' of %d pairs: %.1f %% without a class; alone it tells the preferred "
                "response in %.1f %%.",
                context.name, row.pairs, 100 * row.ties, 100 * row.predicts,
            )  # fmt: skip

    def begin(
        self, step: int, pairs: Sequence[Pair], hidden: Callable[[], tuple[Tensor, Tensor]]
    ) -> None:
        from burnish.rewards.models.dir import represent

        if not self.penalty.is_active:
            return
        self.metrics = self.penalty.prepare(
            represent(*hidden(), self.penalty.representation),
            attribute_labels(self.attribute, pairs),
            learn=step > self.step,
            counts=step >= self.warmup_steps,
        )
        self.step = max(step, self.step)

    def loss(self, states: PairStates, total: int) -> TermLoss:
        from burnish.rewards.models.dir import represent

        pairs_PD = represent(states.chosen_PD, states.rejected_PD, self.penalty.representation)
        part = self.penalty.part(pairs_PD, states.places_P)
        return TermLoss(states.chosen_P.new_zeros(()) if part is None else part.to(pairs_PD.dtype))

    def finish(self, step: int, sums: Mapping[str, Tensor]) -> dict[str, float]:
        # The report belongs to the run and not to a step: told once.
        found = {**self.metrics, **(self._report if step == 0 else {})}
        self.metrics = {}
        return found

    def state(self) -> TermState:
        return TermState({"step": self.step}, self.penalty.tensors())

    def restore(self, state: TermState) -> None:
        self.step = int(state.values["step"])
        self.penalty.load(state.tensors)


PairTerm = FunctionTerm | DirTerm
"""What `train.terms` may hold; a new kind is one more member, `FunctionTerm | MineConfig | ...`."""
