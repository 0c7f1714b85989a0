"""Shaping `contrastive`: less reward for right rollouts that resemble no other right one (CLIPO).

`pool_hidden` makes one vector of a rollout's hidden states, `head` projects it, `losses` compares
the projections inside a group, and the losses of right rollouts become a small penalty:
`c_i = max(floor, constant - lam * l_i)` (arXiv 2603.10101), added to the verifier's reward before
any advantage. The policy sees the changed reward alone; no gradient of the contrastive loss reaches
it. Where we differ: only right rollouts get the constant.

With a floor above -1 a right rollout always outranks a wrong one of a 0/1 verifier. An untrained head
has l = ln(G - 1); a `lam` above `-floor / ln(G - 1)` then puts every rollout on the floor, where none
differ: watch `floor_share`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from burnish.boundary import UNREAD, Count, NonNegative, Number, Positive, PositiveInt, public
from burnish.errors import ArgumentError
from burnish.numbers import Multiple, in_steps
from burnish.policy.base import Component
from burnish.policy.batch import needed
from burnish.policy.contrast.head import contrastive_reward, head_step, initial_head
from burnish.policy.contrast.losses import ContrastRule
from burnish.policy.groups import Ddof
from burnish.policy.grpo import grpo_advantage
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, OneReward

Rate = Annotated[float, Meta(ge=0.0, le=100.0)]
PACKED_ROWS = 16384
"""Half-precision states become float32 this many at a time, never all of them at once."""


class Contrastive(Component, frozen=True, tag="contrastive"):
    """A little less reward for right answers that resemble no other right one (CLIPO)."""

    reward: str = ""
    """Name of the reward that says what is right; empty takes the first whose weight is not 0."""
    correct_above: Number = 0.0
    """An answer is right where that reward is above this."""
    loss: Literal["infonce", "supcon_out", "soft_nn", "supcon_in"] = "infonce"
    """Form of the contrastive loss."""
    temperature: Positive = 0.05
    """Divides the cosines of two answers."""
    scope: Literal["group", "cross", "batch"] = "group"
    """Where the right answers and all others that an answer is compared with come from: both from
    its group, both from the batch, or (`cross`) right ones from the group, others from the batch."""
    anchors: Literal["correct_only", "all"] = "correct_only"
    """Whose loss trains the head: that of right answers, or of all."""
    dedup: bool = False
    """Leave pairs of (nearly) identical answers out: they are each other's best friends."""
    lam: NonNegative = 0.2
    """How much the loss takes off the reward."""
    floor: Annotated[float, Meta(gt=-1.0, le=0.0)] = -0.5
    """Least value that is added to a reward."""
    constant: Number = 0.0
    """Value that a right answer gets before the loss is taken off."""
    head: Literal["linear", "mlp"] = "linear"
    """Layers between the model's states and the embedding."""
    size: PositiveInt = 512
    """Width of the embedding."""
    learning_rate: Rate = 1e-3
    """Of the head's own AdamW."""
    weight_decay: Rate = 0.01
    """Of the head's own AdamW."""
    warmup: Count | Multiple = 0
    """Steps in which only the head learns: answers are sampled, the policy stays. A number, or a
    share of the run's steps such as `"0.1x"`, rounded."""
    frozen: bool = False
    """Never train the head (a control)."""

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        states_BD = needed(batch.hidden_BD, "hidden_BD", "the recipe has a contrastive reward")
        if isinstance(self.warmup, str) and batch.run_steps < 1:
            raise ArgumentError(
                f"run_steps: got {batch.run_steps}, expected the steps of the run; the contrastive "
                f"head warms up for '{self.warmup}' of them"
            )
        column = batch.counted_column(self.reward, "policy.shaping: contrastive")
        verdict_B = batch.rewards_BK[:, column]
        hidden_BD = states_BD.float().masked_fill(verdict_B.isnan()[:, None], torch.nan)
        is_right_B = verdict_B > self.correct_above
        head = shaped.state.head or initial_head(
            hidden_BD.shape[1], self.size, self.head, batch.seed
        )
        rule = ContrastRule(
            loss=self.loss,
            temperature=self.temperature,
            scope=self.scope,
            anchors=self.anchors,
            dedup=self.dedup,
        )
        stepped = head_step.plain(
            head,
            hidden_BD,
            is_right_B,
            batch.groups_B,
            rule,
            seed=batch.seed,
            keys=batch.keys_B,
            duplicate_ids=batch.duplicate_id_B,
            lam=self.lam,
            floor=self.floor,
            constant=self.constant,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            frozen=self.frozen,
        )
        bonus_B = contrastive_reward.plain(
            stepped.losses.per_sample.double(),
            is_right_B,
            self.lam,
            self.floor,
            self.constant,
            usable=hidden_BD.isfinite().all(1),
        )
        rewards_BK = shaped.rewards_BK.clone()
        rewards_BK[:, column] += bonus_B.to(rewards_BK)
        metrics = {f"contrast/{name}": value for name, value in stepped.metrics.items()}
        return dataclasses.replace(
            shaped,
            rewards_BK=rewards_BK,
            state=dataclasses.replace(shaped.state, head=stepped.state),
            metrics=shaped.metrics | metrics,
            moves=shaped.state.steps >= in_steps(self.warmup, batch.run_steps),
        )


@public
def clipo_advantage(
    verifier_rewards: OneReward,
    contrastive_rewards: Float64[Tensor, " B"],
    groups: GroupLabels,
    ddof: Ddof = 1,
    eps: NonNegative = 1e-6,
) -> Tensor:
    """The sum of both rewards, standardised in its group as in GRPO: (B,), (B,) -> (B,).

    A rollout without a verifier reward (NaN) leaves its group's statistics and gets 0.
    """
    total_B = verifier_rewards + contrastive_rewards
    return grpo_advantage.plain(total_B, groups, eps=eps, ddof=ddof)


@public
def pool_hidden(
    hidden: Annotated[Float[Tensor, "B T D"], UNREAD], mask: Bool[Tensor, "B T"]
) -> Tensor:
    """The mean state of each rollout's tokens: (B, T, D), (B, T) -> (B, D), detached.

    At least float32. A rollout without tokens has no mean: its row is NaN, which the contrast drops
    and counts. States where the mask is 0 may hold anything, NaN too. Where we differ from the
    published code: it sums one state fewer than it divides by; here it is the true mean.
    """
    used_BTD = hidden.detach().masked_fill(~mask[:, :, None], 0.0)
    sum_BD = used_BTD.sum(1, dtype=_at_least_float32(hidden))
    return _mean(sum_BD, mask.sum(1))


def pool_packed(hidden_ND: Tensor, rollout_N: Tensor, count: int) -> Tensor:
    """The same for packed tokens: state n belongs to rollout `rollout_N[n]`: -> (count, D).

    Tokens may stand in any order; a rollout that none belongs to is NaN. The order of the sum, and
    so every bit of it, is fixed on a CPU; a GPU adds in the order its threads arrive.
    """
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
