"""State of a recipe's components between steps, as one explicit value.

`advantages(recipe, batch, state)` reads it and returns the next one; nothing else is kept. A
checkpoint holds it as named tensors, so that a resumed run goes on bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.policy.balance import BalanceState
from burnish.policy.contrast.head import HeadState
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


class ReferenceStats(NamedTuple):
    """What each reward was like on the start model's responses."""

    mean_K: Tensor
    """float64; the median where the fit was robust."""
    sd_K: Tensor
    """float64; population deviation, at least the floor. At the floor the reward was constant, and
    any change of it will be clipped: a person should know."""
    count_K: Tensor

    @classmethod
    def from_numbers(
        cls, mean: Sequence[float], sd: Sequence[float], counts: Sequence[int]
    ) -> ReferenceStats:
        return cls(
            torch.tensor(mean, dtype=torch.float64),
            torch.tensor(sd, dtype=torch.float64),
            torch.tensor(counts, dtype=torch.int64),
        )


@dataclass(frozen=True)
class WeightState:
    """What the weights of one run remember from step to step; each (K,) float64."""

    progress_K: Tensor
    """Moving average of the normalised rewards; NaN before the first value."""
    violation_K: Tensor
    """Moving average of the share below the threshold; NaN before the first value."""
    weights_K: Tensor

    @classmethod
    def initial(cls, count: int) -> WeightState:
        """The start of a run with `count` rewards: equal weights, nothing seen."""
        unseen_K = torch.full((count,), torch.nan, dtype=torch.float64)
        return cls(unseen_K, unseen_K.clone(), torch.ones(count, dtype=torch.float64))


@dataclass(frozen=True)
class EntropyState:
    """The coefficient after a step, and the mean entropy of that step."""

    coefficient: float
    entropy: float


_PARTS: dict[str, Any] = {
    "head": HeadState,
    "reference": ReferenceStats,
    "weights": WeightState,
    "balance": BalanceState,
    "entropy": EntropyState,
}


def with_prefix(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}


@dataclass(frozen=True)
class PolicyState:
    """State of all components; None where a recipe has no such component or has not used it yet."""

    steps: int = 0
    head: HeadState | None = None
    """CLIPO's embedding head with its optimiser."""
    reference: ReferenceStats | None = None
    weights: WeightState | None = None
    """Tri-factor weights and their moving averages."""
    balance: BalanceState | None = None
    entropy: EntropyState | None = None

    def tensors(self) -> dict[str, Tensor]:
        found = {"steps": torch.tensor(self.steps)}
        for name in _PARTS:
            part = getattr(self, name)
            if isinstance(part, HeadState):
                found |= {f"{name}.{key}": tensor for key, tensor in part.tensors().items()}
            elif part is not None:
                values = part._asdict() if isinstance(part, ReferenceStats) else vars(part)
                for key, value in values.items():
                    dtype = torch.float64 if isinstance(value, float) else None
                    found[f"{name}.{key}"] = torch.as_tensor(value, dtype=dtype).contiguous()
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PolicyState:
        parts: dict[str, Any] = {}
        for name, kind in _PARTS.items():
            own = with_prefix(tensors, f"{name}.")
            if own and kind is HeadState:
                parts[name] = HeadState.from_tensors(own)
            elif own:
                parts[name] = kind(**{k: t if t.ndim else t.item() for k, t in own.items()})
        return cls(steps=int(tensors["steps"]), **parts)
