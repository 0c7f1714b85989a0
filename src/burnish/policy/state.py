"""State of a recipe's components between steps, as one explicit value.

`advantages(recipe, batch, state)` reads it and returns the next one; nothing else is kept. A
checkpoint holds it as named tensors, so that a resumed run goes on bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.policy.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.balance import BalanceState
    from burnish.policy.contrast.head import HeadState
    from burnish.policy.reference import ReferenceStats
    from burnish.policy.tri_factor import WeightState


@dataclass(frozen=True)
class PolicyState:
    """State of all components; None where a recipe has no such component or has not used it yet."""

    steps: int = 0
    """Steps whose advantages were computed."""
    head: HeadState | None = None
    """CLIPO's embedding head with its optimiser."""
    reference: ReferenceStats | None = None
    """Rewards of the start model."""
    weights: WeightState | None = None
    """Tri-factor weights and their moving averages."""
    balance: BalanceState | None = None
    """Coefficient of imitation, where it adapts."""

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name, for a safetensors file."""
        found = {"steps": torch.tensor(self.steps)}
        for name in _parts():
            part = getattr(self, name)
            tensors = part.tensors() if part else {}
            found |= {f"{name}.{key}": tensor.contiguous() for key, tensor in tensors.items()}
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PolicyState:
        """The state that `tensors` came from."""
        parts: dict[str, Any] = {}
        for name, part in _parts().items():
            start = f"{name}."
            own = {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
            if own:
                parts[name] = part.from_tensors(own)
        return cls(steps=int(tensors["steps"]), **parts)


def _parts() -> dict[str, Any]:
    """The class of each part; imported here, because these modules use `PolicyState`."""
    from burnish.policy.balance import BalanceState
    from burnish.policy.contrast.head import HeadState
    from burnish.policy.reference import ReferenceStats
    from burnish.policy.tri_factor import WeightState

    return {
        "head": HeadState,
        "reference": ReferenceStats,
        "weights": WeightState,
        "balance": BalanceState,
    }
