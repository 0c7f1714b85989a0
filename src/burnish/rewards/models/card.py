"""What is known of a reward model, or a process reward model, kept beside its weights.

Written as `reward_model.json` or `process_reward_model.json` into every checkpoint. Needs no torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from burnish.boundary import PositiveInt, Share
from burnish.errors import UserError
from burnish.store.durable import write_file

CARD = "reward_model.json"
BINS = 10
C = TypeVar("C")
STEPS = 100
"""Percentiles kept of the scores: 0 to 100."""


class ScoredPair(NamedTuple):
    """The scores of a held-out pair, and its texts."""

    chosen: float
    rejected: float
    chosen_text: str
    rejected_text: str
    target: float = 1.0


class CalibrationBin(Struct, frozen=True):
    """Pairs whose predicted probability lies in one stretch."""

    low: float
    high: float
    count: int
    predicted: float | None
    """Mean of `sigma(|r_a - r_b|)`: how sure the model is; None for an empty bin."""
    right: float | None
    """Share of these pairs whose preferred answer has the higher score."""


class PairCalibration(NamedTuple):
    """How far the probabilities of a reward model can be believed."""

    bins: tuple[CalibrationBin, ...]
    """Over 0.5 to 1."""
    ece: float
    """Expected calibration error: mean distance of `predicted` and `right`, weighted by count."""
    pairs: int


class RewardModelCard(Struct, frozen=True, kw_only=True):
    """`reward_model.json`."""

    step: int
    """Steps of training behind the scores."""
    pairs: PositiveInt
    accuracy: tuple[Share, Share, Share]
    """Share of held-out pairs in the order of their labels, with Wilson's 95 % interval."""
    ece: float
    bins: tuple[CalibrationBin, ...]
    percentiles: Annotated[tuple[float, ...], Meta(min_length=STEPS + 1, max_length=STEPS + 1)]
    """Scores of the held-out answers at 0, 1, ... 100 percent."""
    length_slope: float | None
    """Score that an answer of twice the characters has more, among answers to one prompt; None
    where all pairs have equal lengths."""
    max_tokens: int = 0
    """Longest conversation that was trained on."""

    @classmethod
    def of(
        cls,
        scored: Sequence[ScoredPair],
        *,
        step: int,
        max_tokens: int,
        accuracy: tuple[float, float, float],
    ) -> RewardModelCard:
        """The card from scored held-out pairs."""
        better = [(p.chosen, p.rejected) if p.target >= 0.5 else p[1::-1] for p in scored]
        found = calibrate([a for a, _ in better], [b for _, b in better])
        scores = sorted(score for pair in scored for score in pair[:2])

        def quantile(share: float) -> float:
            place = share * (len(scores) - 1)
            low = int(place)
            high = min(low + 1, len(scores) - 1)
            return scores[low] + (place - low) * (scores[high] - scores[low])

        return cls(
            step=step,
            pairs=len(scored),
            accuracy=accuracy,
            ece=found.ece,
            bins=found.bins,
            percentiles=tuple(quantile(k / STEPS) for k in range(STEPS + 1)),
            length_slope=length_slope(scored),
            max_tokens=max_tokens,
        )

    def percentile(self, score: float) -> float:
        """Share of the held-out answers with a lower score, in percent; 0 to 100."""
        known = self.percentiles
        if score <= known[0] or score >= known[-1]:
            return 0.0 if score <= known[0] else 100.0
        # The first of equal scores: those at the same height are not lower.
        place = bisect.bisect_left(known, score) - 1
        low, high = known[place], known[place + 1]
        return place + (score - low) / (high - low)


def calibrate(better: Sequence[float], worse: Sequence[float], bins: int = BINS) -> PairCalibration:
    """Reliability of `sigma(|difference|)`; equal scores are half right. `better` is the label."""
    cells: list[list[tuple[float, float]]] = [[] for _ in range(bins)]
    for a, b in zip(better, worse, strict=True):
        sure = 1 / (1 + math.exp(-min(abs(a - b), 700.0)))
        right = 0.5 if a == b else float(a > b)
        cells[min(int((sure - 0.5) * 2 * bins), bins - 1)].append((sure, right))
    found, error, total = [], 0.0, max(len(better), 1)
    for place, cell in enumerate(cells):
        low, high = 0.5 + place / bins / 2, 0.5 + (place + 1) / bins / 2
        if not cell:
            found.append(CalibrationBin(low, high, 0, None, None))
            continue
        predicted = sum(sure for sure, _ in cell) / len(cell)
        right = sum(mark for _, mark in cell) / len(cell)
        found.append(CalibrationBin(low, high, len(cell), predicted, right))
        error += len(cell) / total * abs(predicted - right)
    return PairCalibration(tuple(found), error, len(better))


def length_slope(scored: Sequence[ScoredPair]) -> float | None:
    """Regression of score differences on differences of log2 length, through the origin."""
    lengths = [(max(len(p.chosen_text), 1), max(len(p.rejected_text), 1)) for p in scored]
    ratios = [math.log2(chosen / rejected) for chosen, rejected in lengths]
    spread = sum(x * x for x in ratios)
    moved = sum(x * (p.chosen - p.rejected) for x, p in zip(ratios, scored, strict=True))
    return moved / spread if spread else None


def write_card(folder: Path, card: RewardModelCard | ProcessCard) -> None:
    """Put the card beside the weights."""
    name = CARD if isinstance(card, RewardModelCard) else PROCESS_CARD
    write_file(folder / name, msgspec.json.format(msgspec.json.encode(card)))


def read_card(folder: Path) -> RewardModelCard | None:
    """The card in a model's folder; None where there is none."""
    return _read(folder / CARD, RewardModelCard)


def _read(path: Path, kind: type[C]) -> C | None:
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged: {error}. Remove it, or write the model again"
        ) from None


# --- a process reward model: how its steps are separated, which a reward must do in the same way


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


def read_process_card(folder: Path) -> ProcessCard | None:
    """The card in a model's folder; None where there is none."""
    return _read(folder / PROCESS_CARD, ProcessCard)
