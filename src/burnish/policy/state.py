"""What a recipe remembers from one step to the next, as one explicit value.

`advantages(recipe, batch, state)` reads it and gives the next one back; nothing else is kept
anywhere. A checkpoint holds it as named tensors, so that a resumed run goes on bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from burnish.policy.balance import BalanceState
    from burnish.policy.contrast.head import HeadState
    from burnish.policy.reference import ReferenceStats
    from burnish.policy.tri_factor import WeightState


@dataclass(frozen=True)
class PolicyState:
    """The memory of all pieces; None where a recipe has no such piece or has not used it yet."""

    steps: int = 0
    """Steps weighed so far."""
    head: HeadState | None = None
    """CLIPO's embedding head with its optimiser."""
    reference: ReferenceStats | None = None
    """Rewards of the start model."""
    weights: WeightState | None = None
    """Tri-factor weights with what they follow."""
    balance: BalanceState | None = None
    """The weight of imitation, where it adapts."""

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name, for a safetensors file."""
        found = {"steps": torch.tensor(self.steps)}
        held = {
            "head": self.head.tensors() if self.head else {},
            "reference": self.reference.tensors() if self.reference else {},
            "weights": self.weights.tensors() if self.weights else {},
            "balance": self.balance.tensors() if self.balance else {},
        }
        for part, tensors in held.items():
            found |= {f"{part}.{name}": t.contiguous() for name, t in tensors.items()}
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PolicyState:
        """The state that `tensors` came from."""
        from burnish.policy.balance import BalanceState
        from burnish.policy.contrast.head import HeadState
        from burnish.policy.reference import ReferenceStats
        from burnish.policy.tri_factor import WeightState

        def part(name: str) -> dict[str, Tensor]:
            start = f"{name}."
            return {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}

        head, reference, weights = part("head"), part("reference"), part("weights")
        balance = part("balance")
        return cls(
            steps=int(tensors["steps"]),
            head=HeadState.from_tensors(head) if head else None,
            reference=ReferenceStats.from_tensors(reference) if reference else None,
            weights=WeightState.from_tensors(weights) if weights else None,
            balance=BalanceState.from_tensors(balance) if balance else None,
        )
