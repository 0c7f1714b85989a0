"""Piece 3: leave out rollouts whose rewards disagree (GD2PO, arXiv 2606.16771).

A rollout above its group's mean on one reward and below it on another sends signals that cancel.
The hard filter drops every such rollout, the SNR filter only those whose net signal is small beside
the gross one; each group then counts by the share of its rollouts that is left. Where we differ: a
reward may have a weight, and one of weight 0 is ignored here too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.arguments import as_number, as_word, refused
from burnish.policy.groups import as_groups, as_weights, group_sum
from burnish.policy.tensors import as_float64, as_mask, check_tensor

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers

CONFLICT_VARIANTS = ("hard", "snr")

SIGN_EPS = 1e-8
"""A rollout at its group's mean keeps a rounding error of about 1e-17 there, which has a sign but
is no opinion."""


def sign_conflict(
    per_reward_advantages: Numbers, sign_eps: float = SIGN_EPS, *, weights: Numbers | None = None
) -> Tensor:
    """True where some `w_k a_ik` is above `sign_eps` and another below `-sign_eps`: bool (B,)."""
    as_number("sign_eps", sign_eps, low=0)
    signals_BK = _signals(per_reward_advantages, weights)
    return (signals_BK > sign_eps).any(1) & (signals_BK < -sign_eps).any(1)


def snr_ratio(
    per_reward_advantages: Numbers, eps: float = 1e-8, *, weights: Numbers | None = None
) -> Tensor:
    """Net over gross signal, `sum_k w_k a_ik / (sum_k |w_k a_ik| + eps)`: (B, K) -> (B,).

    Between -1 and 1; near 0 where the rewards cancel, and exactly 0 where there is no signal.
    """
    as_number("eps", eps, above=0)
    signals_BK = _signals(per_reward_advantages, weights)
    return signals_BK.sum(1) / (signals_BK.abs().sum(1) + eps)


def conflict_keep(
    per_reward_advantages: Numbers,
    variant: str = "hard",
    tau: float = 0.8,
    *,
    sign_eps: float = SIGN_EPS,
    weights: Numbers | None = None,
) -> Tensor:
    """False for the rollouts that the filter drops: (B, K) -> bool (B,).

    `hard`: all with a sign conflict. `snr`: those of them with `|snr_ratio| < tau`; none at 0, the
    same as `hard` at 1.
    """
    as_word("variant", variant, CONFLICT_VARIANTS)
    as_number("tau", tau, low=0, high=1)
    is_conflict_B = sign_conflict(per_reward_advantages, sign_eps, weights=weights)
    if variant == "hard":
        return ~is_conflict_B
    ratio_B = snr_ratio(per_reward_advantages, weights=weights)
    return ~(is_conflict_B & (ratio_B.abs() < tau))


def group_keep_ratio(
    keep: Numbers, groups: GroupLabels, *, present: Numbers | None = None
) -> Tensor:
    """The kept share of each rollout's group: (B,) -> (B,) float64.

    `present`, bool (B,): rollouts that count; without it all do. 0 where none of a group counts.
    """
    given_B = as_float64(keep, "keep")
    check_tensor(given_B, "keep", "(B,)", 1)
    kept_B1 = as_mask(given_B, "keep", tuple(given_B.shape))[:, None]
    counted_B1 = torch.ones_like(kept_B1)
    if present is not None:
        counted_B1 = as_mask(present, "present", tuple(given_B.shape)).to(kept_B1.device)[:, None]
    numbered = as_groups(groups, kept_B1)
    kept_sum_B1 = group_sum((kept_B1 & counted_B1).double(), numbered)
    return (kept_sum_B1 / group_sum(counted_B1.double(), numbered).clamp(min=1.0))[:, 0]


def _signals(per_reward_advantages: Numbers, weights: Numbers | None) -> Tensor:
    """What each reward says about each rollout, weighted, (B, K); 0 where it is missing."""
    values_BK = as_float64(per_reward_advantages, "per_reward_advantages")
    check_tensor(values_BK, "per_reward_advantages", "(B, K)", 2)
    if values_BK.isinf().any():
        raise refused(
            "per_reward_advantages", math.inf, "finite numbers, or NaN where a reward is missing"
        )
    return values_BK.nan_to_num(nan=0.0) * as_weights(weights, values_BK)
