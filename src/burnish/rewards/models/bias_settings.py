"""How DIR keeps one attribute out of a reward model: numbers and their ranges, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from burnish.arguments import as_number, as_whole, as_word

Clamp = Literal["none", "zero"]


MOST_WIDE = 65_536
"""Most units of a head, and most classes: more are a slip of the pen, and fill the memory."""


@dataclass(frozen=True)
class BiasSettings:
    """How one attribute is kept out."""

    lam: float = 1.0
    """Weight of the penalty, by global batch; the start, where `target_auc` moves it."""
    classes: int = 2
    head_width: int = 1024
    head_steps: int = 5
    """Updates of the head for each batch."""
    head_learning_rate: float = 1e-4
    queue: int = 256
    """Past pairs that the batch is compared with; 0 for none."""
    clamp: Clamp = "none"
    target_auc: float | None = None
    """Raise or lower lambda until the head finds the attribute only this well; 0.55 is almost not."""
    lam_rate: float = 0.1
    lam_most: float = 10.0

    def __post_init__(self) -> None:
        as_number("lam", self.lam, low=0)
        as_whole("classes", self.classes, low=2, high=MOST_WIDE)
        as_whole("head_width", self.head_width, low=1, high=MOST_WIDE)
        as_whole("head_steps", self.head_steps, low=0)
        as_number("head_learning_rate", self.head_learning_rate, above=0)
        as_whole("queue", self.queue, low=0)
        as_word("clamp", self.clamp, get_args(Clamp))
        if self.target_auc is not None:
            as_number("target_auc", self.target_auc, low=0.5, below=1)
        as_number("lam_rate", self.lam_rate, above=0)
        as_number("lam_most", self.lam_most, low=0)
