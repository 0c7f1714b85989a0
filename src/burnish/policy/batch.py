"""What `advantages` and `loss` take and return: plain tensors with named axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from burnish.boundary import MISSING
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.policy.state import PolicyState
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int
    from torch import Tensor

    from burnish.policy.groups import GroupLabels


def needed(value: Tensor | None, name: str, why: str) -> Tensor:
    """A tensor that the recipe reads from its batch; its name ends in its axes."""
    if value is None:
        axes = ", ".join(name.rpartition("_")[2])
        raise ArgumentError(f"{name}: got none, expected ({axes}); {why}")
    return value


@dataclass(frozen=True)
class CriticTargets:
    """What a critic said of each trained token before the step's first update, and should have."""

    values_BT: Tensor
    """float64."""
    returns_BT: Tensor
    """float64; 0 where there is no token or no reward."""


@dataclass(frozen=True)
class RewardBatch:
    """All rollouts of a step, before any update. `advantages(recipe, batch)` reads this."""

    rewards_BK: Annotated[Float64[Tensor, "B K"], MISSING]
    """NaN where a reward has no value."""
    weights_K: Float64[Tensor, " K"]
    groups_B: GroupLabels
    lengths_B: Annotated[Int[Tensor, " B"], Meta(ge=0)]
    truncated_B: Bool[Tensor, " B"]
    names: tuple[str, ...] = ()
    seed: int = 0
    run_steps: int = 0
    """Steps that the whole run takes; for settings that are a share of it."""
    max_tokens: int = 0
    """The rollout's token budget; for `overlong_penalty` without a limit of its own."""
    hidden_BD: Tensor | None = None
    """Mean of the last layer's states over each response; for `contrastive`."""
    keys_B: Tensor | None = None
    """int64, unique to each rollout; draws depend on it and not on the place in the batch."""
    duplicate_id_B: Tensor | None = None
    """int64, the same for rollouts of the same tokens; for `contrastive` with `dedup`."""
    segments_BT: Tensor | None = None
    """int64 section or step of each trained token, -1 outside of all; for `stepwise`."""
    steps_BJ: Tensor | None = None
    """float64 scores of each answer's steps, NaN where it has none; for `stepwise` with `split`."""
    baselines_BK: Tensor | None = None
    """Rewards of the greedy answer to each rollout's prompt; for `greedy_baseline`."""
    sizes_B: Tensor | None = None
    """int64, rollouts that each one's group began with, lost ones included; for `singletons`."""
    roles_B: Tensor | None = None
    """int64 number of the role that each rollout plays; for `singletons`."""
    values_BT: Tensor | None = None
    """float64, the critic's value before each trained token; for `gae`."""
    kl_BT: Tensor | None = None
    """float64, log-prob of each trained token less the starting model's; for `gae` with `kl`."""

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of the rewards; their numbers, from 0 on, where the batch has none."""
        return self.names or tuple(map(str, range(self.rewards_BK.shape[1])))

    @property
    def has_any_B(self) -> Tensor:
        return (~self.rewards_BK.isnan() & (self.weights_K != 0)).any(1)

    @property
    def has_token_BT(self) -> Tensor:
        """True where a rollout has a token, shaped as `segments_BT`."""
        segments_BT = needed(self.segments_BT, "segments_BT", "the recipe credits segments")
        return self.has_token(segments_BT.shape[1]).to(segments_BT.device)

    def has_token(self, width: int) -> Tensor:
        places_T = torch.arange(width, device=self.lengths_B.device)
        return places_T < self.lengths_B[:, None]

    def column(self, reward: str, where: str) -> int:
        """The column of a reward that a setting names; `where` is for the message."""
        if reward not in self.titles:
            raise UserError(
                f"{where} names the reward '{reward}', which the run does not have; expected "
                f"{', '.join(self.titles)}.{did_you_mean(reward, self.titles)}"
            )
        return self.titles.index(reward)

    def counted_column(self, reward: str, where: str) -> int:
        """As `column`, of a reward whose weight is not 0; the first such one for an empty name."""
        if not reward:
            return int((self.weights_K != 0).nonzero()[0])
        column = self.column(reward, where)
        if self.weights_K[column] == 0:
            raise UserError(
                f"{where} is added to the reward '{reward}', which has weight 0; expected a reward "
                "that counts."
            )
        return column


@dataclass(frozen=True)
class Estimate:
    """Result of the advantage component, before rollouts are selected."""

    values_B: Tensor
    """float64; 0 where a rollout has no value or its group no signal. (B, T) with stepwise and gae,
    and where a function gives one a token."""
    per_reward_BK: Tensor
    """Each reward's own advantage; 0 where it is missing or its weight is 0."""
    is_present_B: Tensor
    """bool; False where the rollout has no reward to learn from."""
    critic: CriticTargets | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Advantages:
    """Advantage, selection and clip bounds of each rollout."""

    values_B: Tensor
    """float64; (B,), or (B, T) with one a token. 0 where a rollout has no signal."""
    per_reward_BK: Tensor
    keep_B: Tensor
    """bool; False leaves numerator and denominator of the loss."""
    weights_B: Tensor
    """Factor of each rollout by the select component; `values_B` includes it."""
    low_B: Tensor
    """Clip bounds below 1 and above; shaped as `values_B`."""
    high_B: Tensor
    signal_B: Tensor
    """bool; True where some rollout of the group has an advantage other than 0."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    state: PolicyState = field(default_factory=PolicyState)
    counted_BT: Tensor | None = None
    """bool; tokens that enter the loss at all, where stepwise credit leaves some out."""
    moves: bool = True
    """False in the first steps of a recipe whose head learns before the policy does."""
    buckets_B: Tensor | None = None
    """int64 bucket of the group's pass rate, -1 where it has none; None where no rate is known."""
    critic: CriticTargets | None = None

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
    sampler_logp_BT: Tensor | None = None
    """Log-probs by the sampler that wrote the tokens; for a `correction`."""
    marks: Mapping[str, Tensor] | None = None
    """Slot -> (B, T) bool, marks of the whole mini-batch; None: this batch is the whole."""
    entropy_coefficient: float | None = None
    """Current coefficient of `adaptive_entropy`; None: its start."""
    seed: int = 0
    """Of the update, for components that draw tokens at random."""
    values_BT: Tensor | None = None
    old_values_BT: Tensor | None = None
    returns_BT: Tensor | None = None


@dataclass(frozen=True)
class Loss:
    """The loss and its metrics: detached 0-d tensors, so that nothing waits for the device."""

    total: Tensor
    parts: Mapping[str, Tensor]
    """Surrogate and auxiliary terms, each as it entered the total."""
    clipped_share: Tensor
    ratio_max: Tensor
    clipped_by_bucket_2P: Tensor | None = None
    """Clipped tokens and all tokens of each pass-rate bucket, float64."""
    correction: Mapping[str, Tensor] = field(default_factory=dict)
    """Mean `weight` and `cut_share` of the importance correction over the trained tokens."""
    marked: Mapping[str, Tensor] = field(default_factory=dict)
    """Slot -> share of the trained tokens that its component marked."""
