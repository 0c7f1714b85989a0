"""Bradley-Terry: the loss of scores whose difference says how likely one answer is preferred.

`P(chosen is better) = sigma(r_chosen - r_rejected)`; with a margin m (Llama 2, arXiv 2307.09288,
eq. 2) the loss is `-log sigma(r_chosen - r_rejected - m)`. A target t other than 1 is a label that
is right with probability t; 0.5 is a tie, whose loss is least at equal scores.

Scores are free up to a constant for each prompt. `centring` takes that freedom away: the mean of
`(r_chosen + r_rejected)^2` (Eisenstein et al., arXiv 2312.09244, eq. 5), times a small coefficient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from burnish.boundary import Number, Share, public
from burnish.rewards.models.card import PairCalibration, calibrate
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Float64
    from torch import Tensor

    Scores = Float[Tensor, " B"]


@public
def bradley_terry_loss(
    r_chosen: Scores,
    r_rejected: Scores,
    *,
    margin: Float64[Tensor, " B"] | Number = 0.0,
    target: Annotated[Float64[Tensor, " B"], Meta(ge=0, le=1)] | Share = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """`-t log sigma(d) - (1 - t) log sigma(-d)`, `d = r_chosen - r_rejected - margin`: () or (B,).

    `margin` and `target` t are one number or (B,); without a target every label is right, t = 1.
    Differentiable in both scores.
    """
    margin_B, target_B = (
        one.to(r_chosen) if isinstance(one, torch.Tensor) else r_chosen.new_tensor(one)
        for one in (margin, target)
    )
    loss_B = pair_loss(r_chosen - r_rejected - margin_B, target_B)
    if reduction == "none":
        return loss_B
    return loss_B.sum() if reduction == "sum" else loss_B.mean()


@public
def centring_loss(r_chosen: Scores, r_rejected: Scores) -> Tensor:
    """Mean of `(r_chosen + r_rejected)^2`: (B,), (B,) -> (); least where scores lie around 0."""
    return (r_chosen + r_rejected).square().mean()


def pair_loss(difference_B: Tensor, target_B: Tensor) -> Tensor:
    """`bradley_terry_loss` of each pair, without checks: inside a loss no value is looked at."""
    log_sigmoid = torch.nn.functional.logsigmoid
    return -target_B * log_sigmoid(difference_B) - (1 - target_B) * log_sigmoid(-difference_B)


@public
def pair_calibration(
    r_chosen: Float64[Tensor, " B"],
    r_rejected: Float64[Tensor, " B"],
    *,
    bins: Annotated[int, Meta(ge=1, le=1000)] = 10,
) -> PairCalibration:
    """Reliability of `sigma(|r_chosen - r_rejected|)` as the probability of being right.

    A pair counts in the bin of how sure the model is of the answer that it prefers, so the bins
    cover 0.5 to 1. Equal scores are half right.
    """
    return calibrate(r_chosen.tolist(), r_rejected.tolist(), bins)
