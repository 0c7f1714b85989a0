"""Bradley-Terry: the loss of scores whose difference says how likely one answer is preferred.

`P(chosen is better) = sigma(r_chosen - r_rejected)`; with a margin m (Llama 2, arXiv 2307.09288,
eq. 2) the loss is `-log sigma(r_chosen - r_rejected - m)`. A target t other than 1 is a label that
is right with probability t; 0.5 is a tie, whose loss is least at equal scores.

Scores are free up to a constant for each prompt. `centring` takes that freedom away: the mean of
`(r_chosen + r_rejected)^2` (Eisenstein et al., arXiv 2312.09244, eq. 5), times a small coefficient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.arguments import as_whole, as_word, refused
from burnish.errors import ArgumentError
from burnish.rewards.models.card import PairCalibration, calibrate
from burnish.tensors import as_finite, as_logp, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

REDUCTIONS = ("mean", "sum", "none")


def bradley_terry_loss(
    r_chosen: Numbers,
    r_rejected: Numbers,
    *,
    margin: Numbers | None = None,
    target: Numbers | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`-t log sigma(d) - (1 - t) log sigma(-d)`, `d = r_chosen - r_rejected - margin`: () or (B,).

    `margin` and `target` t are one number or (B,); without a target every label is right, t = 1.
    Differentiable in both scores.
    """
    as_word("reduction", reduction, REDUCTIONS)
    chosen_B = _scores(r_chosen, "r_chosen")
    rejected_B = _scores(r_rejected, "r_rejected").to(chosen_B.device)
    check_shape(rejected_B, "r_rejected", tuple(chosen_B.shape))
    margin_B = _labels(0.0 if margin is None else margin, "margin", chosen_B)
    target_B = _labels(1.0 if target is None else target, "target", chosen_B)
    if bool(((target_B < 0) | (target_B > 1)).any()):
        raise ArgumentError(
            f"target: got {float(target_B.min()):g} to {float(target_B.max()):g}, expected "
            "probabilities from 0 to 1"
        )
    loss_B = pair_loss(chosen_B - rejected_B - margin_B, target_B)
    if reduction == "none":
        return loss_B
    return loss_B.sum() if reduction == "sum" else loss_B.mean()


def centring_loss(r_chosen: Numbers, r_rejected: Numbers) -> Tensor:
    """Mean of `(r_chosen + r_rejected)^2`: (B,), (B,) -> (); least where scores lie around 0."""
    chosen_B = _scores(r_chosen, "r_chosen")
    rejected_B = _scores(r_rejected, "r_rejected").to(chosen_B.device)
    check_shape(rejected_B, "r_rejected", tuple(chosen_B.shape))
    return (chosen_B + rejected_B).square().mean()


def pair_loss(difference_B: Tensor, target_B: Tensor) -> Tensor:
    """`bradley_terry_loss` of each pair, without checks: inside a loss no value is looked at."""
    log_sigmoid = torch.nn.functional.logsigmoid
    return -target_B * log_sigmoid(difference_B) - (1 - target_B) * log_sigmoid(-difference_B)


def pair_calibration(r_chosen: Numbers, r_rejected: Numbers, *, bins: int = 10) -> PairCalibration:
    """Reliability of `sigma(|r_chosen - r_rejected|)` as the probability of being right.

    A pair counts in the bin of how sure the model is of the answer that it prefers, so the bins
    cover 0.5 to 1. Equal scores are half right.
    """
    count = as_whole("bins", bins, low=1, high=1000)
    chosen_B, rejected_B = as_finite(r_chosen, "r_chosen"), as_finite(r_rejected, "r_rejected")
    check_shape(rejected_B, "r_rejected", tuple(chosen_B.shape))
    if chosen_B.ndim != 1 or not len(chosen_B):
        raise refused("r_chosen", r_chosen, "a score for each pair, (B,)")
    return calibrate(chosen_B.tolist(), rejected_B.tolist(), count)


def _scores(values: Numbers, what: str) -> Tensor:
    read = as_logp(values, what)
    if read.ndim != 1 or not len(read):
        raise refused(what, values, "a score for each pair, (B,)")
    check_finite(read, what)
    return read


def _labels(values: Numbers, what: str, like: Tensor) -> Tensor:
    read = as_finite(values, what).to(like)
    check_shape(read, what, (), tuple(like.shape))
    return read
