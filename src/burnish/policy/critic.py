"""Critics: who says what reward to expect from each token on, for advantage `gae` (PPO).

    critic = { kind = "shared", coefficient = 0.1, clip = 0.2 }
    critic = { kind = "separate", learning_rate = 1e-5, path = "runs/my_reward_model" }

A critic's value of a token is read from the hidden state that predicts it, before the token is known.
Its loss is PPO's (`value_loss` in `policy/gae.py`), averaged over the trained tokens of the
mini-batch. `shared` is a linear head, 0 at the start, on the hidden states of the policy itself: no
second model, and its loss is added to the policy's, so that its gradient moves the trunk too.
`separate` is a second model with a head and an optimiser of its own (`training/critic.py`), which
never moves the policy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burnish.errors import ArgumentError
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.base import Component, require
from burnish.policy.gae import value_losses

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.aggregate import Aggregate
    from burnish.policy.batch import LossBatch, Normaliser


class NoCritic(Component, frozen=True, tag="none"):
    """No critic: rewards are compared with each other."""

    def term(self, batch: LossBatch, aggregate: Aggregate) -> Tensor | None:
        """None: nothing is added to the loss."""
        return None


class SharedCritic(Component, frozen=True, tag="shared"):
    """A value head on the policy's own hidden states, trained with it."""

    coefficient: float = 0.1
    """Weight of the critic's loss beside the policy's; TRL's default."""
    clip: float = 0.2
    """How far a value may move in a step before its gradient ends; 0 is off. TRL's default."""

    def check(self) -> None:
        require(0 < self.coefficient < math.inf, "coefficient", self.coefficient, "above 0")
        require(0 <= self.clip < math.inf, "clip", self.clip, "at least 0 (0 is off)")

    def term(self, batch: LossBatch, aggregate: Aggregate) -> Tensor | None:
        """The critic's loss as it enters the policy's, ()."""
        given = (batch.values_BT, batch.old_values_BT, batch.returns_BT)
        names = ("values_BT", "old_values_BT", "returns_BT")
        for name, tensor in zip(names, given, strict=True):
            if tensor is None or tensor.shape != batch.logp_BT.shape:
                got = "none" if tensor is None else f"shape {tuple(tensor.shape)}"
                shape = tuple(batch.logp_BT.shape)
                raise ArgumentError(f"{name}: got {got}, expected {shape}; the recipe has a critic")
        values_BT, old_BT, returns_BT = (tensor for tensor in given if tensor is not None)
        total = critic_loss(
            values_BT,
            old_BT,
            returns_BT,
            batch.mask_BT,
            self.clip,
            keep_B=batch.keep_B,
            normaliser=batch.normaliser,
            keep_denominator=aggregate.keep_denominator,
        )
        return self.coefficient * total


class SeparateCritic(Component, frozen=True, tag="separate"):
    """A second model with a value head and an optimiser of its own, trained beside the policy."""

    path: str = ""
    """Model that it begins with: a reward model's folder or run, another run's `critic`, any model of
    the policy's vocabulary. Empty: a copy of the policy."""
    learning_rate: float = 1e-5
    """Peak rate of its AdamW; the rest is as `optimiser` says. verl's default."""
    clip: float = 0.2
    """How far a value may move in a step before its gradient ends; 0 is off. TRL's default."""

    def check(self) -> None:
        require(0 <= self.learning_rate <= 10, "learning_rate", self.learning_rate, "0 to 10")
        require(0 <= self.clip < math.inf, "clip", self.clip, "at least 0 (0 is off)")

    def term(self, batch: LossBatch, aggregate: Aggregate) -> Tensor | None:
        """None: its loss is computed in passes of its own."""
        return None


def critic_loss(
    values_BT: Tensor,
    old_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    clip: float,
    *,
    keep_B: Tensor | None,
    normaliser: Normaliser | None,
    keep_denominator: bool,
) -> Tensor:
    """The loss of a critic over the tokens of a mini-batch, (); its micro-batches add up.

    `clip` 0 is off.
    """
    old_BT, returns_BT = (one.detach().to(values_BT) for one in (old_BT, returns_BT))
    return aggregate_loss(
        value_losses(values_BT, old_BT, returns_BT, clip or None),
        mask_BT,
        "token-mean",
        keep_B=keep_B,
        normaliser=normaliser,
        keep_denominator=keep_denominator,
    )
