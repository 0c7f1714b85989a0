"""What a component is: frozen settings from a recipe, and one method that does its work.

The method of a slot takes and returns:

| slot           | method                                        | result                        |
|----------------|-----------------------------------------------|-------------------------------|
| `shaping`      | `shape(shaped, batch)`                        | `Shaped`                      |
| `weights`      | `reward_weights(normalised_BK, batch, state)` | `RewardWeights`               |
| `advantage`    | `estimate(batch)`                             | `Estimate`                    |
| `critic`       | `term(batch, aggregate)`                      | a term of the loss, or None   |
| `select`       | `select(estimate, signal_B, batch)`           | `Selection`                   |
| `post_scale`   | `rescale(values_B, keep_B, signal_B, batch)`  | advantages (B,)               |
| `trust_region` | `bounds(values_B, batch, given)`              | `ClipBounds`                  |
| `surrogate`    | `token_losses(terms)`                         | `Surrogate`                   |
| `tokens`       | `mark(tokens)`, where it marks any            | (N,) bool                     |
| `correction`   | `token_weights(batch)`                        | `CorrectionWeights` or None   |
| `auxiliary`    | `name`, `term(batch, aggregate, ratio)`       | a term of the loss, ()        |

A component module imports without torch, so that a recipe can be read and checked where torch is
not installed: it takes `torch` from `burnish.tensors`, which loads it at first use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from burnish.boundary import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.state import PolicyState


class Component(Settings, frozen=True, tag_field="kind"):
    """Base of every component; the tag is its `kind` in a recipe, `ALIASES` are other names for it."""


@dataclass(frozen=True)
class Shaped:
    """Rewards after shaping, with the state and metrics of the shaping components."""

    rewards_BK: Tensor
    state: PolicyState
    metrics: dict[str, float] = field(default_factory=dict)
    moves: bool = True
    """False in steps in which only a head learns and the policy stays."""


class RewardWeights(NamedTuple):
    """Weight of each reward in this step, (K,), with the new state and metrics."""

    weights_K: Tensor
    state: PolicyState
    metrics: dict[str, float]


class Selection(NamedTuple):
    """Which rollouts to train on, and the factor of each one's advantage."""

    keep_B: Tensor
    weights_B: Tensor


class ClipBounds(NamedTuple):
    """How far a ratio may fall below and rise above 1 before it is clipped, each (B,)."""

    low_B: Tensor
    high_B: Tensor
