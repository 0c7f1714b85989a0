"""Shaping `contrastive`: less reward for right rollouts that resemble no other right one (CLIPO).

`pool` makes one vector of a rollout's hidden states, `head` projects it, `losses` compares the
projections inside a group, and the losses of right rollouts become a small penalty:
`c_i = max(floor, constant - lam * l_i)` (arXiv 2603.10101), added to the verifier's reward before
any advantage. The policy sees the changed reward alone; no gradient of the contrastive loss reaches
it. Where we differ: only right rollouts get the constant.

With a floor above -1 a right rollout always outranks a wrong one of a 0/1 verifier. An untrained head
has l = ln(G - 1); a `lam` above `-floor / ln(G - 1)` then puts every rollout on the floor, where none
differ: watch `floor_share`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

from burnish.arguments import refused
from burnish.errors import ArgumentError
from burnish.multiples import Multiple, in_steps
from burnish.policy.base import Component, require
from burnish.policy.contrast.head import HeadState, contrastive_reward, head_step
from burnish.policy.contrast.losses import ContrastRule
from burnish.policy.grpo import grpo_advantage
from burnish.tensors import as_finite, as_float64, check_shape, check_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.base import Shaped
    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels
    from burnish.tensors import Numbers


class Contrastive(Component, frozen=True, tag="contrastive"):
    """A little less reward for right answers that resemble no other right one (CLIPO)."""

    reward: str = ""
    """Name of the reward that says what is right; empty takes the first whose weight is not 0."""
    correct_above: float = 0.0
    """An answer is right where that reward is above this."""
    loss: Literal["infonce", "supcon_out", "soft_nn", "supcon_in"] = "infonce"
    """Form of the contrastive loss."""
    temperature: float = 0.05
    """Divides the cosines of two answers."""
    scope: Literal["group", "cross", "batch"] = "group"
    """Where the right answers and all others that an answer is compared with come from: both from
    its group, both from the batch, or (`cross`) right ones from the group, others from the batch."""
    anchors: Literal["correct_only", "all"] = "correct_only"
    """Whose loss trains the head: that of right answers, or of all."""
    dedup: bool = False
    """Leave pairs of (nearly) identical answers out: they are each other's best friends."""
    lam: float = 0.2
    """How much the loss takes off the reward."""
    floor: float = -0.5
    """Least value that is added to a reward."""
    constant: float = 0.0
    """Value that a right answer gets before the loss is taken off."""
    head: Literal["linear", "mlp"] = "linear"
    """Layers between the model's states and the embedding."""
    size: int = 512
    """Width of the embedding."""
    learning_rate: float = 1e-3
    """Of the head's own AdamW."""
    weight_decay: float = 0.01
    """Of the head's own AdamW."""
    warmup: int | Multiple = 0
    """Steps in which only the head learns: answers are sampled, the policy stays. A number, or a
    share of the run's steps such as `"0.1x"`, rounded."""
    frozen: bool = False
    """Never train the head (a control)."""

    def check(self) -> None:
        require(0 < self.temperature < math.inf, "temperature", self.temperature, "above 0")
        require(0 <= self.lam < math.inf, "lam", self.lam, "at least 0")
        require(-1 < self.floor <= 0, "floor", self.floor, "above -1, up to 0")
        require(self.size >= 1, "size", self.size, "at least 1")
        if isinstance(self.warmup, int):
            require(self.warmup >= 0, "warmup", self.warmup, "at least 0")
        for key in ("learning_rate", "weight_decay"):
            require(0 <= getattr(self, key) <= 100, key, getattr(self, key), "0 to 100")
        for key in ("correct_above", "constant"):
            require(math.isfinite(getattr(self, key)), key, getattr(self, key), "a finite number")

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        """Add the contrastive reward to that of right rollouts, and train the head by one step."""
        if batch.hidden_BD is None:
            raise ArgumentError(
                "hidden_BD: got none, expected (B, D); the recipe has a contrastive reward"
            )
        if isinstance(self.warmup, str) and batch.run_steps < 1:
            raise ArgumentError(
                f"run_steps: got {batch.run_steps}, expected the steps of the run; the contrastive "
                f"head warms up for '{self.warmup}' of them"
            )
        column = batch.counted_column(self.reward, "policy.shaping: contrastive")
        verdict_B = batch.rewards_BK[:, column]
        hidden_BD = batch.hidden_BD.float().masked_fill(verdict_B.isnan()[:, None], torch.nan)
        is_right_B = verdict_B > self.correct_above
        head = shaped.state.head or HeadState.initial(
            hidden_BD.shape[1], self.size, self.head, batch.seed
        )
        stepped = head_step(
            head,
            hidden_BD,
            is_right_B,
            batch.groups_B,
            self._rule(),
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
        bonus_B = contrastive_reward(
            stepped.losses.per_sample,
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

    def _rule(self) -> ContrastRule:
        return ContrastRule(
            loss=self.loss,
            temperature=self.temperature,
            scope=self.scope,
            anchors=self.anchors,
            dedup=self.dedup,
        )


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
