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
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields, force_setattr

from burnish.arguments import refused
from burnish.errors import ArgumentError
from burnish.numbers import plain

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.state import PolicyState


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Frozen settings whose types hold however they are made, in Python as from a file."""

    def __post_init__(self) -> None:
        # msgspec checks types where it reads a file; a call in Python takes anything.
        for name, kind in _types(type(self)):
            given = getattr(self, name)
            try:
                read = msgspec.convert(plain(given), kind)
            except msgspec.ValidationError as error:
                raise refused(name, given, _expected(kind, error)) from None
            if read is not given:  # a list for a tuple, a number of numpy's
                force_setattr(self, name, read)
        self.check()

    def check(self) -> None:
        """Refuse what is out of range; types hold by then."""


class Component(Settings, frozen=True, tag_field="kind"):
    """Base of every component; the tag is its `kind` in a recipe file.

    `ALIASES`, where a component has it, are other names for its kind: those of the method.
    """


@cache
def _types(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in fields(kind))


def _expected(kind: Any, error: Exception) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    kinds = [one for one in get_args(kind) if isinstance(one, type) and issubclass(one, Struct)]
    if kinds:
        return ", ".join(one.__name__ for one in kinds)
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    return words.get(kind) or str(error).removeprefix("Expected ").partition(", got")[0]


def require(is_met: bool, key: str, got: float, expected: str) -> None:
    """Refuse a setting that is out of range."""
    if not is_met:
        raise ArgumentError(f"{key}: got {got}, expected {expected}")


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
    """bool."""
    weights_B: Tensor
    """float64."""


class ClipBounds(NamedTuple):
    """How far a ratio may fall below and rise above 1 before it is clipped, each (B,)."""

    low_B: Tensor
    high_B: Tensor
