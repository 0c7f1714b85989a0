"""Small batches and the five recipes that the tests of this room share."""

import torch
from torch import Tensor

from burnish.policy import (
    KL,
    Aggregate,
    BatchWhiten,
    Entropy,
    InformativeGroups,
    LossBatch,
    NormaliseThenSum,
    OverlongPenalty,
    Recipe,
    RewardBatch,
    StaticRegion,
    SumThenNormalise,
)

RECIPES = {
    "grpo": Recipe(auxiliary=(KL(coefficient=0.04), Entropy(coefficient=0.01))),
    "dr_grpo": Recipe(
        advantage=SumThenNormalise(scale="none"),
        aggregate=Aggregate(mode="seq-mean-token-sum-norm", max_tokens=8),
    ),
    "dapo": Recipe(
        shaping=(OverlongPenalty(limit=8, buffer=4),),
        select=InformativeGroups(),
        trust_region=StaticRegion(low=0.2, high=0.28),
        aggregate=Aggregate(mode="token-mean"),
    ),
    "gspo": Recipe(
        ratio="sequence",
        trust_region=StaticRegion(low=3e-4, high=4e-4),
        aggregate=Aggregate(mode="seq-mean-token-mean"),
    ),
    "gdpo": Recipe(
        advantage=NormaliseThenSum(),
        post_scale=BatchWhiten(),
        dual_clip=3.0,
        aggregate=Aggregate(mode="token-mean"),
    ),
}


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def reward_batch(
    rewards: list[list[float]] | Tensor,
    groups: list[int],
    *,
    weights: list[float] | None = None,
    lengths: list[int] | None = None,
    names: tuple[str, ...] = (),
) -> RewardBatch:
    rewards_BK = torch.as_tensor(rewards, dtype=torch.float64)
    rollouts, count = rewards_BK.shape
    return RewardBatch(
        rewards_BK=rewards_BK,
        weights_K=torch.tensor(weights or [1.0] * count, dtype=torch.float64),
        groups_B=torch.tensor(groups),
        lengths_B=torch.tensor(lengths or [4] * rollouts),
        truncated_B=torch.zeros(rollouts, dtype=torch.bool),
        names=names,
    )


def loss_batch(rollouts: int = 6, tokens: int = 5, seed: int = 0, spread: float = 0.3) -> LossBatch:
    """A float64 batch with uneven lengths, a hole in one mask and one rollout that is not kept."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    old_logp_BT = normal(rollouts, tokens) - 3
    lengths_B = torch.arange(rollouts) % tokens + 1
    mask_BT = torch.arange(tokens)[None] < lengths_B[:, None]
    mask_BT[-2, 0] = False
    keep_B = torch.ones(rollouts, dtype=torch.bool)
    keep_B[1] = False
    return LossBatch(
        logp_BT=(old_logp_BT + spread * normal(rollouts, tokens)).requires_grad_(True),
        old_logp_BT=old_logp_BT,
        mask_BT=mask_BT,
        advantages_B=normal(rollouts),
        low_B=torch.full((rollouts,), 0.2, dtype=torch.float64),
        high_B=torch.full((rollouts,), 0.2, dtype=torch.float64),
        keep_B=keep_B,
        ref_logp_BT=old_logp_BT + 0.1 * normal(rollouts, tokens),
        entropy_BT=normal(rollouts, tokens).abs(),
        max_tokens=tokens,
    )


def assert_close(
    left: object, right: object, tolerance: float = 1e-9, *, equal_nan: bool = False
) -> None:
    """Two tensors or nested lists are equal to within `tolerance`, in float64."""
    torch.testing.assert_close(
        torch.as_tensor(left, dtype=torch.float64),
        torch.as_tensor(right, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
        equal_nan=equal_nan,
    )
