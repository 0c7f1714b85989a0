"""What the two doors of the policy room take and give; plain tensors with named axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from burnish.policy.state import PolicyState


@dataclass(frozen=True)
class RewardBatch:
    """All rollouts of a step, before any update. `advantages(recipe, batch)` reads this."""

    rewards_BK: Tensor
    """float64; NaN where a reward has no value."""
    weights_K: Tensor
    groups_B: Tensor
    """int64 group number of each rollout."""
    lengths_B: Tensor
    """Trained tokens of each rollout."""
    truncated_B: Tensor
    """True where the token budget cut the response."""
    names: tuple[str, ...] = ()
    seed: int = 0
    """Of this step; what draws at random here draws from it."""
    hidden_BD: Tensor | None = None
    """Mean of the last layer's states over each response; for `contrastive`."""
    keys_B: Tensor | None = None
    """int64, a number of each rollout's own; draws follow it, not the place in the batch."""
    twins_B: Tensor | None = None
    """int64, the same for rollouts of the same tokens; for `contrastive` with `dedup`."""
    segments_BT: Tensor | None = None
    """int64 section of each trained token, -1 outside of all; for `stepwise`."""

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of the rewards; their numbers, from 0 on, where the batch has none."""
        return self.names or tuple(map(str, range(self.rewards_BK.shape[1])))


@dataclass(frozen=True)
class Estimate:
    """What piece 2 found, before rollouts are selected. Select functions read this."""

    values_B: Tensor
    """float64; 0 where a rollout has no value or its group no signal. (B, T) with stepwise."""
    per_reward_BK: Tensor
    """Each reward's own advantage; 0 where it is missing or its weight is 0."""
    is_present_B: Tensor
    """bool; False where the rollout has no reward to learn from."""


@dataclass(frozen=True)
class Advantages:
    """What the update needs to know of each rollout."""

    values_B: Tensor
    """float64; (B,), or (B, T) with stepwise credit. 0 where a rollout has no signal."""
    per_reward_BK: Tensor
    keep_B: Tensor
    """bool; False leaves numerator and denominator of the loss."""
    weights_B: Tensor
    """How much the select piece lets each rollout count; already a factor of `values_B`."""
    low_B: Tensor
    """Clip bounds below 1 and above; shaped as `values_B`."""
    high_B: Tensor
    signal_B: Tensor
    """bool; True where some rollout of the group has an advantage other than 0."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    state: PolicyState = field(default_factory=PolicyState)
    """What the recipe remembers after this step."""
    counted_BT: Tensor | None = None
    """bool; tokens that enter the loss at all, where stepwise credit leaves some out."""
    moves: bool = True
    """False in the first steps of a recipe whose head learns before the policy does."""
    buckets_B: Tensor | None = None
    """int64 bucket of the group's pass rate, -1 where it has none; None where no rate is known."""

    def per_rollout(self) -> Tensor:
        """One advantage a rollout, (B,): the mean over the tokens that count."""
        if self.values_B.ndim == 1 or self.counted_BT is None:
            return self.values_B
        counts_B = self.counted_BT.sum(1).clamp(min=1)
        return (self.values_B * self.counted_BT).sum(1) / counts_B


@dataclass(frozen=True)
class Normaliser:
    """Denominators of the whole mini-batch, so that micro-batches add up to its gradient."""

    tokens: float
    rollouts: float


@dataclass(frozen=True)
class LossBatch:
    """One micro-batch of the update. `loss(recipe, batch)` reads this."""

    logp_BT: Tensor
    old_logp_BT: Tensor
    mask_BT: Tensor
    advantages_B: Tensor
    """(B,) or (B, T)."""
    low_B: Tensor
    """Clip bounds, (B,) or (B, T)."""
    high_B: Tensor
    keep_B: Tensor
    normaliser: Normaliser | None = None
    """None: this batch is the whole."""
    ref_logp_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
    max_tokens: int = 0
    """The rollout's token budget: the constant length of `seq-mean-token-sum-norm`."""
    expert_logp_BT: Tensor | None = None
    """Log-probs of demonstrations, for `sft`; rows of their own. Without them the term is 0."""
    expert_mask_BT: Tensor | None = None
    buckets_B: Tensor | None = None
    """Pass-rate bucket of each rollout's group, negative for none; without it none are counted."""


@dataclass(frozen=True)
class Loss:
    """The loss and what a person wants to see beside it. Metrics are sums over trained tokens or
    means as named, detached floats kept as 0-d tensors until read."""

    total: Tensor
    parts: Mapping[str, Tensor]
    """Surrogate and auxiliary terms, each as it entered the total."""
    clipped_share: Tensor
    ratio_max: Tensor
    clipped_by_bucket_2P: Tensor | None = None
    """Clipped tokens and all tokens of each pass-rate bucket, float64."""
