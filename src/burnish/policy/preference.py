"""Losses on pairs of completions of which one is preferred: DPO, IPO and their length control.

With `h = log pi(chosen)/ref(chosen) - log pi(rejected)/ref(rejected)`, DPO (arXiv 2305.18290, eq. 7)
minimises `-log sigmoid(beta h)` and IPO (arXiv 2310.12036, eq. 17) `(h - 1/(2 beta))^2`.

A sum of log-probs grows with its length, so plain DPO rewards long answers. Two published controls
act on the log-probs before `h` is formed (`completion_logp`):
- `mean`: the mean over the completion's tokens (length-normalised DPO, as Tulu 3 trains it, arXiv
  2411.15124). IPO always takes it: the results in its paper are of this form.
- `ld_alpha`: LD-DPO (arXiv 2409.06411): tokens beyond the length that both completions
  share count `ld_alpha` times; 1 is plain DPO, 0 ignores them.
R-DPO's margin `alpha (|chosen| - |rejected|)` (arXiv 2403.19159) is not here: its `alpha` has to be
tuned to the lengths of a data set, the two above have no unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.arguments import as_number, as_word, refused
from burnish.tensors import (
    as_lengths,
    as_logp,
    as_mask,
    check_finite,
    check_shape,
    check_tensor,
    torch,
)

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

REDUCTIONS = ("mean", "none")


def dpo_loss(
    chosen_logp: Numbers,
    rejected_logp: Numbers,
    ref_chosen_logp: Numbers | None,
    ref_rejected_logp: Numbers | None,
    beta: float = 0.1,
    *,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """`-(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h)`: four times (B,) -> () or (B,).

    `label_smoothing` s is the share of labels that are assumed to be the wrong way round (cDPO).
    Both reference log-probs None is the reference-free form, `h = chosen_logp - rejected_logp`.
    Differentiable in the first two.
    """
    as_number("beta", beta, above=0)
    as_number("label_smoothing", label_smoothing, low=0, below=0.5)
    margin_B = _checked_margin(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp)
    return _reduced(sigmoid_loss(margin_B, beta, label_smoothing), reduction)


def ipo_loss(
    chosen_logp: Numbers,
    rejected_logp: Numbers,
    ref_chosen_logp: Numbers | None,
    ref_rejected_logp: Numbers | None,
    beta: float = 0.1,
    *,
    reduction: str = "mean",
) -> Tensor:
    """`(h - 1 / (2 beta))^2`: four times (B,) -> () or (B,).

    Expects means over tokens (`completion_logp(..., mean=True)`). Unlike DPO's, the loss is least
    at a finite margin, so pairs that are always labelled alike do not drive the policy away.
    """
    as_number("beta", beta, above=0)
    margin_B = _checked_margin(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp)
    return _reduced(squared_loss(margin_B, beta), reduction)


def completion_logp(
    logp: Numbers,
    mask: Numbers,
    *,
    mean: bool = False,
    shared: Numbers | None = None,
    ld_alpha: float = 1.0,
) -> Tensor:
    """Log-prob of each completion from those of its tokens: (B, T), (B, T) -> (B,).

    `mean` divides by the completion's tokens. With `shared` (B,), the tokens of the shorter
    completion of each pair, later tokens count `ld_alpha` times (LD-DPO). A completion without a
    token has 0.
    """
    values_BT = as_logp(logp, "logp")
    check_tensor(values_BT, "logp", "(B, T)", 2)
    mask_BT = as_mask(mask, "mask", tuple(values_BT.shape)).to(values_BT.device)
    check_finite(values_BT, "logp", mask_BT)
    as_number("ld_alpha", ld_alpha, low=0, high=1)
    shared_B = None if shared is None else as_lengths(shared, "shared", values_BT)
    return summed_logp(values_BT, mask_BT, mean, shared_B, ld_alpha)


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


def _checked_margin(
    chosen: Numbers,
    rejected: Numbers,
    ref_chosen: Numbers | None,
    ref_rejected: Numbers | None,
) -> Tensor:
    """`h`, (B,), from log-probs whose values are checked."""
    chosen_B = _logp(chosen, "chosen_logp")
    margin_B = chosen_B - _logp(rejected, "rejected_logp", like=chosen_B)
    if ref_chosen is None and ref_rejected is None:
        return margin_B
    ref_chosen_B = _logp(ref_chosen, "ref_chosen_logp", like=chosen_B)
    return margin_B - (ref_chosen_B - _logp(ref_rejected, "ref_rejected_logp", like=chosen_B))


def _logp(values: Numbers | None, what: str, like: Tensor | None = None) -> Tensor:
    if values is None:
        raise refused(what, values, "log-probs, (B,); both references or none")
    read = as_logp(values, what)
    if read.ndim != 1 or not len(read):
        raise refused(what, values, "a log-prob for each pair, (B,)")
    check_shape(read, what, tuple((read if like is None else like).shape))
    check_finite(read, what)
    return read if like is None else read.to(like.device)


def _reduced(loss_B: Tensor, reduction: str) -> Tensor:
    as_word("reduction", reduction, REDUCTIONS)
    return loss_B if reduction == "none" else loss_B.mean()
