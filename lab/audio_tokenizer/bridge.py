"""A frozen language model that must write what representations say (arXiv 2606.06357, 2.2)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.errors import ArgumentError
from burnish.tensors import as_mask


class FrozenLMBridge(nn.Module):
    """Representations as a prefix of a frozen language model that must write their text.

    Each `stacked` frames become one embedding by two layers; gradients pass through the language model
    and never into it. It is held outside of the module, so that nothing trains or saves it.
    """

    def __init__(self, lm: Any, size: int, stacked: int = 2) -> None:
        super().__init__()
        lm.requires_grad_(False)
        self._held = (lm.eval(),)
        self.stacked = stacked
        width = lm.get_input_embeddings().weight.shape[1]
        self.projector = nn.Sequential(
            nn.Linear(stacked * size, width), nn.GELU(), nn.Linear(width, width)
        )

    @property
    def lm(self) -> Any:
        return self._held[0]

    def forward(self, hidden: Tensor, mask: Tensor, ids: Tensor, is_target: Tensor) -> Tensor:
        """Mean cross-entropy of the target tokens: (B, T, D), (B, T), (B, L), (B, L) -> ().

        `ids` are prompt and target, padded at the end; `is_target` says which of them are to be written.
        """
        self.check_frozen()
        prefix, seen = self.prefix(hidden, mask)
        embed = self.lm.get_input_embeddings()
        inputs = torch.cat((prefix.to(embed.weight.dtype), embed(ids)), dim=1)
        last = is_target.long() * torch.arange(1, ids.shape[1] + 1, device=ids.device)
        is_text = torch.arange(ids.shape[1], device=ids.device) < last.amax(1, keepdim=True)
        attention = torch.cat((seen, is_text), dim=1)
        places = (attention.long().cumsum(1) - 1).clamp(min=0)
        logits = self.lm(
            inputs_embeds=inputs, attention_mask=attention.long(), position_ids=places
        ).logits
        # The token before a target predicts it; before the first text token stands the last frame.
        said = logits[:, prefix.shape[1] - 1 : -1].float()
        losses = F.cross_entropy(said.flatten(0, 1), ids.flatten(), reduction="none")
        chosen = is_target.flatten()
        return torch.where(chosen, losses, 0.0).sum() / chosen.sum().clamp(min=1)

    def prefix(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (B, T / stacked, width) and which of them hold sound; padding goes to the left.

        So the last frame stands right before the text in every row.
        """
        rows, frames, size = hidden.shape
        missing = -frames % self.stacked
        heard = as_mask(mask, "mask", (rows, frames)).to(hidden.device)
        # A frame of padding may share an embedding with the last one of sound.
        padded = F.pad(torch.where(heard[..., None], hidden, 0.0), (0, 0, 0, missing))
        joined = padded.reshape(rows, -1, self.stacked * size)
        is_sound = F.pad(heard, (0, missing)).view(rows, -1, self.stacked).any(-1)
        order = is_sound.long().argsort(dim=1, stable=True)
        moved = joined.gather(1, order[..., None].expand_as(joined))
        found: Tensor = self.projector(moved)
        return found, is_sound.gather(1, order)

    def check_frozen(self) -> None:
        """Refuse a language model that is trained, or that a gradient has reached."""
        for name, weight in self.lm.named_parameters():
            if weight.requires_grad or weight.grad is not None:
                raise ArgumentError(f"lm: trains {name}, expected a frozen language model")
