"""A contrastive head as one object that is called, trained and saved; a thin door to `head`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.errors import StoreError
from burnish.policy.contrast.head import HeadKind, HeadState, HeadStep, embed, head_step


class ContrastiveHead:
    """A head from D hidden features to unit vectors of d; `state` is all that it holds.

    head = ContrastiveHead(576, 512)
    step = head.step(hidden_BD, labels, groups)     # losses by the head before this step
    head.save("head.safetensors")
    """

    def __init__(self, D: int, d: int, kind: HeadKind = "linear", *, seed: int = 0) -> None:
        self.state = HeadState.initial(D, d, kind, seed)

    def __call__(self, hidden_BD: Tensor) -> Tensor:
        """Unit vectors of pooled hidden states: (B, D) -> (B, d)."""
        return embed(self.state, hidden_BD)

    def step(self, *arguments: Any, **settings: Any) -> HeadStep:
        """One `head_step`, whose arguments it takes after the state; the new state is kept."""
        result = head_step(self.state, *arguments, **settings)
        self.state = result.state
        return result

    def to(self, device: torch.device | str) -> ContrastiveHead:
        """Move the head to a device."""
        self.state = self.state.to(device)
        return self

    def save(self, path: str | Path) -> None:
        """Write weights, moments and step count as one safetensors file, whole or not at all."""
        path = Path(path)
        draft = path.with_name(f".writing-{path.name}-{os.getpid()}")
        try:
            save_file(self.state.tensors(), draft)
            os.replace(draft, path)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            raise StoreError(f"contrastive head could not be written to {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> ContrastiveHead:
        """The head that `save` wrote, bit for bit."""
        try:
            state = HeadState.from_tensors(load_file(path))
        except (OSError, SafetensorError, ValueError) as error:
            raise StoreError(
                f"contrastive head {path} could not be read: {error}; expected a file that "
                "ContrastiveHead.save wrote"
            ) from error
        head = cls.__new__(cls)
        head.state = state
        return head
