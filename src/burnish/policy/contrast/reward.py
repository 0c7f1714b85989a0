"""From contrastive losses to rewards: a small penalty for right rollouts that stand alone.

`c_i = max(floor, constant - lam * l_i)` for right rollouts (CLIPO, arXiv 2603.10101), added to the
verifier's reward before any advantage. Where we differ: the constant is paid to right rollouts only.
With a floor above -1 a right rollout always outranks a wrong one of a 0/1 verifier. An untrained head
has l = ln(G - 1); a `lam` above `-floor / ln(G - 1)` then puts everyone on the floor, where nobody
differs: watch `floor_share`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from burnish.arguments import as_number, plain_number, refused
from burnish.policy.advantage import grpo_advantage
from burnish.policy.tensors import as_finite, as_float64, as_marks, check_shape, check_tensor

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers


def contrastive_reward(
    per_sample_loss: Numbers,
    labels: Numbers,
    lam: float = 0.2,
    floor: float = -0.5,
    constant: float = 0.0,
    *,
    usable: Numbers | None = None,
) -> Tensor:
    """`max(floor, constant - lam * loss)` where `labels` is 1, else 0: (B,), (B,) -> (B,) float64.

    A right rollout that was no anchor has loss 0 and gets the constant; where `usable` (B,) is 0 there
    was nothing to compare, and it gets 0.
    """
    as_number("lam", lam, low=0)
    if plain_number(floor) != -math.inf:  # no floor
        as_number("floor", floor, high=0)
    as_number("constant", constant)
    loss_B = as_finite(per_sample_loss, "per_sample_loss")
    check_tensor(loss_B, "per_sample_loss", "(B,)", 1)
    is_paid_B = as_marks(labels, "labels", loss_B)
    if usable is not None:
        is_paid_B = is_paid_B & as_marks(usable, "usable", loss_B)
    return (constant - lam * loss_B).clamp(min=floor).masked_fill(~is_paid_B, 0.0)


def clipo_advantage(
    verifier_rewards: Numbers,
    contrastive_rewards: Numbers,
    groups: GroupLabels,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """The sum of both rewards, standardised in its group as in GRPO: (B,), (B,) -> (B,).

    A rollout without a verifier reward (NaN) leaves its group's statistics and gets 0.
    """
    rewards_B = as_float64(verifier_rewards, "verifier_rewards")
    check_tensor(rewards_B, "verifier_rewards", "(B,)", 1)
    if rewards_B.isinf().any():
        raise refused("verifier_rewards", math.inf, "finite numbers, or NaN where there is none")
    added_B = as_finite(contrastive_rewards, "contrastive_rewards").to(rewards_B.device)
    check_shape(added_B, "contrastive_rewards", tuple(rewards_B.shape))
    return grpo_advantage(rewards_B + added_B, groups, eps=eps, ddof=ddof)


def floor_share(contrastive_rewards: Numbers, anchors: Numbers, floor: float = -0.5) -> float:
    """The share of anchors whose reward is the floor, where all look equally bad; NaN without any."""
    rewards_B = as_float64(contrastive_rewards, "contrastive_rewards")
    at_anchors = rewards_B[as_marks(anchors, "anchors", rewards_B)]
    return (at_anchors <= floor).double().mean().item()
