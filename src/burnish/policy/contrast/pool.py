"""One vector for each rollout: the mean of the last layer's states over its response tokens.

CLIPO (arXiv 2603.10101) compares rollouts by this mean. Where we differ from the published code:
it sums one state fewer than it divides by; here it is the true mean. The result is detached: the
contrastive loss trains its own head and never the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.errors import ArgumentError
from burnish.tensors import as_float64, check_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

PACKED_ROWS = 16384
"""Half-precision states become float32 this many at a time, never all of them at once."""


def pool_hidden(hidden: Numbers, mask: Numbers) -> Tensor:
    """The mean state of each rollout's tokens: (B, T, D), (B, T) -> (B, D), detached.

    At least float32. A rollout without tokens has no mean: its row is NaN, which the contrast drops
    and counts. States where the mask is 0 may hold anything, NaN too.
    """
    hidden_BTD = (
        hidden.detach() if isinstance(hidden, torch.Tensor) else as_float64(hidden, "hidden")
    )
    check_tensor(hidden_BTD, "hidden", "(B, T, D)", 3)
    mask_BT = as_float64(mask, "mask").to(hidden_BTD.device)
    if mask_BT.shape != hidden_BTD.shape[:2] or not ((mask_BT == 0) | (mask_BT == 1)).all():
        raise ArgumentError(
            f"mask: got shape {tuple(mask_BT.shape)}, expected {tuple(hidden_BTD.shape[:2])}, "
            "1 on the tokens to average and 0 elsewhere"
        )
    used_BTD = hidden_BTD.masked_fill(mask_BT[:, :, None] == 0, 0.0)
    sum_BD = used_BTD.sum(1, dtype=_at_least_float32(hidden_BTD))
    return _mean(sum_BD, mask_BT.sum(1))


def pool_packed(hidden_ND: Tensor, rollout_N: Tensor, count: int) -> Tensor:
    """The same for packed tokens: state n belongs to rollout `rollout_N[n]`: -> (count, D).

    Tokens may stand in any order; a rollout that none belongs to is NaN. The order of the sum, and
    so every bit of it, is fixed on a CPU; a GPU adds in the order its threads arrive.
    """
    if hidden_ND.ndim != 2 or rollout_N.shape != hidden_ND.shape[:1]:
        raise ArgumentError(
            f"hidden_ND, rollout_N: got shapes {tuple(hidden_ND.shape)} and "
            f"{tuple(rollout_N.shape)}, expected (N, D) and (N,)"
        )
    hidden_ND = hidden_ND.detach()
    kind = _at_least_float32(hidden_ND)
    sum_BD = torch.zeros(count, hidden_ND.shape[1], dtype=kind, device=hidden_ND.device)
    parts = zip(
        torch.split(hidden_ND, PACKED_ROWS), torch.split(rollout_N, PACKED_ROWS), strict=True
    )
    for states_ND, owners_N in parts:
        sum_BD.index_add_(0, owners_N, states_ND.to(kind))
    # Not bincount: it has no deterministic form on a GPU, and integers add up in any order.
    tokens_B = torch.zeros(count, dtype=torch.int64, device=hidden_ND.device)
    tokens_B.index_add_(0, rollout_N, torch.ones_like(rollout_N, dtype=torch.int64))
    return _mean(sum_BD, tokens_B)


def _at_least_float32(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def _mean(sum_BD: Tensor, tokens_B: Tensor) -> Tensor:
    mean_BD = sum_BD / tokens_B.clamp(min=1).to(sum_BD)[:, None]
    return mean_BD.masked_fill(tokens_B[:, None] == 0, torch.nan)
