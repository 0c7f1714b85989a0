"""What is known of a process reward model, kept beside its weights.

    card = read_process_card(folder)        # None where the folder holds no such model
    card.separator, card.threshold, card.f1

Written as `process_reward_model.json` into every checkpoint: how steps are separated, which a
reward must do in the same way, and the figures of the newest held-out evaluation. Needs no torch.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from burnish.errors import UserError
from burnish.store.durable import write_file

PROCESS_CARD = "process_reward_model.json"

Interval = tuple[float, float, float]
"""A value with its 95 % interval."""


class ProcessCard(Struct, frozen=True, kw_only=True):
    """`process_reward_model.json`."""

    separator: str
    """What stands behind each step."""
    max_tokens: int
    """Longest prompt and solution that was trained on."""
    step: int
    """Steps of training behind the figures."""
    solutions: int = 0
    """Held-out solutions; 0: none was evaluated, and there are no figures."""
    steps: int = 0
    """Their steps with a label."""
    step_accuracy: Interval | None = None
    """Share of a prompt's labelled steps on their side of probability 0.5; the mean over prompts."""
    auc: float | None = None
    """Chance that a right step scores above a wrong one; None without both."""
    f1: Interval | None = None
    """ProcessBench's F1; each half of the solutions is judged by the threshold of the other."""
    wrong: Interval | None = None
    """Share of wrong solutions whose first wrong step is found."""
    right: Interval | None = None
    """Share of right solutions without a flagged step."""
    threshold: float = 0.5
    """Probability below which a step is flagged: the best one on all held-out solutions."""


def write_process_card(folder: Path, card: ProcessCard) -> None:
    """Put the card beside the weights."""
    write_file(folder / PROCESS_CARD, msgspec.json.format(msgspec.json.encode(card)))


def read_process_card(folder: Path) -> ProcessCard | None:
    """The card in a model's folder; None where there is none."""
    path = folder / PROCESS_CARD
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProcessCard)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged: {error}. Restore it, or write the model again"
        ) from None
