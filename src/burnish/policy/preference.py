"""Losses on pairs of completions of which one is preferred: DPO, IPO and their length control.

With `h = log pi(chosen)/ref(chosen) - log pi(rejected)/ref(rejected)`, DPO (arXiv 2305.18290, eq. 7)
minimises `-log sigmoid(beta h)` and IPO (arXiv 2310.12036, eq. 17) `(h - 1/(2 beta))^2`.

A sum of log-probs grows with its length, so plain DPO rewards long answers. Two published controls
act on the log-probs before `h` is formed: `mean` (length-normalised DPO, arXiv 2411.15124; IPO always
takes it), and `ld_alpha` (LD-DPO, arXiv 2409.06411): tokens beyond the length that both completions
share count `ld_alpha` times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from burnish.boundary import UNREAD, Positive, Share, public
from burnish.errors import ArgumentError
from burnish.tensors import check_finite, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from burnish.policy.groups import Lengths

    Logp = Float[Tensor, " B"]

Reduction = Literal["mean", "none"]


@public
def dpo_loss(
    chosen_logp: Logp,
    rejected_logp: Logp,
    ref_chosen_logp: Logp | None,
    ref_rejected_logp: Logp | None,
    beta: Positive = 0.1,
    *,
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """`-(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h)`: four times (B,) -> () or (B,).

    `label_smoothing` s is the share of labels that are assumed to be the wrong way round (cDPO).
    Both reference log-probs None is the reference-free form, `h = chosen_logp - rejected_logp`.
    Differentiable in the first two.
    """
    margin_B = _margin(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp)
    return _reduced(sigmoid_loss(margin_B, beta, label_smoothing), reduction)


@public
def ipo_loss(
    chosen_logp: Logp,
    rejected_logp: Logp,
    ref_chosen_logp: Logp | None,
    ref_rejected_logp: Logp | None,
    beta: Positive = 0.1,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """`(h - 1 / (2 beta))^2`: four times (B,) -> () or (B,).

    Expects means over tokens (`completion_logp(..., mean=True)`). Unlike DPO's, the loss is least
    at a finite margin, so pairs that are always labelled alike do not drive the policy away.
    """
    margin_B = _margin(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp)
    return _reduced(squared_loss(margin_B, beta), reduction)


@public
def completion_logp(
    logp: Annotated[Float[Tensor, "B T"], UNREAD],
    mask: Bool[Tensor, "B T"],
    *,
    mean: bool = False,
    shared: Lengths | None = None,
    ld_alpha: Share = 1.0,
) -> Tensor:
    """Log-prob of each completion from those of its tokens: (B, T), (B, T) -> (B,).

    `mean` divides by the completion's tokens. With `shared` (B,), the tokens of the shorter
    completion of each pair, later tokens count `ld_alpha` times (LD-DPO). A completion without a
    token has 0.
    """
    check_finite(logp, "logp", mask)
    return summed_logp(logp, mask, mean, shared, ld_alpha)


# Inside a loss: no value is looked at, for that would wait for the device.


def summed_logp(
    logp_BT: Tensor, mask_BT: Tensor, mean: bool, shared_B: Tensor | None, ld_alpha: float
) -> Tensor:
    """`completion_logp` without its checks."""
    weight_BT = mask_BT.to(logp_BT.dtype)
    if shared_B is not None:
        is_late_BT = mask_BT.cumsum(1) > shared_B[:, None]
        weight_BT = torch.where(is_late_BT, ld_alpha * weight_BT, weight_BT)
    sum_B = (logp_BT.masked_fill(~mask_BT, 0.0) * weight_BT).sum(1)
    return sum_B / mask_BT.sum(1).clamp(min=1) if mean else sum_B


def sigmoid_loss(margin_B: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """DPO's loss of each pair from `h`: (B,) -> (B,)."""
    loss_B = -torch.nn.functional.logsigmoid(beta * margin_B)
    if not label_smoothing:
        return loss_B
    return (1 - label_smoothing) * loss_B - label_smoothing * torch.nn.functional.logsigmoid(
        -beta * margin_B
    )


def squared_loss(margin_B: Tensor, beta: float) -> Tensor:
    """IPO's loss of each pair from `h`: (B,) -> (B,)."""
    return (margin_B - 1 / (2 * beta)).square()


def _margin(
    chosen_B: Tensor, rejected_B: Tensor, ref_chosen: Tensor | None, ref_rejected: Tensor | None
) -> Tensor:
    if not len(chosen_B):
        raise ArgumentError("chosen_logp: got no pair, expected a log-prob for each pair, (B,)")
    if ref_chosen is None and ref_rejected is None:
        return chosen_B - rejected_B
    if ref_chosen is None or ref_rejected is None:
        name = "ref_chosen_logp" if ref_chosen is None else "ref_rejected_logp"
        raise ArgumentError(f"{name}: got None, expected both references or none")
    return chosen_B - rejected_B - (ref_chosen - ref_rejected)


def _reduced(loss_B: Tensor, reduction: str) -> Tensor:
    return loss_B if reduction == "none" else loss_B.mean()
