"""The toy of these studies: sort 12 digits with a small bidirectional transformer.

A row is 12 digits, `=`, and the same digits in order; only the answer is masked. Two layers of width 64
learn it in a minute on one thread. Position embeddings have unit variance: with small ones the model
does not find out which place it is at.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from burnish.models.masked_diffusion import Noise, evaluation_uniforms, token_nll

DIGITS = 12
EQUALS, MASK, VOCABULARY = 10, 11, 12
LENGTH = 2 * DIGITS + 1
WIDTH, LAYERS, HEADS = 64, 2, 4


class Rows(NamedTuple):
    """Rows of the task."""

    ids_BL: Tensor
    eligible_BL: Tensor


def rows(count: int, generator: Generator) -> Rows:
    """Fresh rows."""
    digits = torch.randint(10, (count, DIGITS), generator=generator)
    equals = torch.full((count, 1), EQUALS)
    ids_BL = torch.cat([digits, equals, digits.sort(1).values], 1)
    return Rows(ids_BL, (torch.arange(LENGTH) > DIGITS).expand(count, LENGTH))


class Block(nn.Module):
    """Attention over all places and an MLP, both behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_m = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, h_BLD: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        split = self.qkv(self.norm_a(h_BLD)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        h_BLD = h_BLD + self.out(mixed)
        return h_BLD + self.down(F.gelu(self.up(self.norm_m(h_BLD))))


class Sorter(nn.Module):
    """Token ids to logits, (B, L) -> (B, L, V); every place sees every other."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        for name, value in self.named_parameters():
            if value.ndim == 2:
                std = 1.0 if name in ("embed.weight", "place.weight") else value.shape[1] ** -0.5
                nn.init.normal_(value, std=std, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(value)

    def forward(self, ids_BL: Tensor, attention_BL: Tensor | None = None) -> Tensor:
        """Logits; rows have no padding, so the attention mask is not looked at."""
        logits: Tensor = self.head(self.hidden(ids_BL))
        return logits

    def hidden(self, ids_BL: Tensor) -> Tensor:
        """What the head reads, (B, L) -> (B, L, D)."""
        h_BLD = self.embed(ids_BL) + self.place.weight[: ids_BL.shape[1]]
        for block in self.blocks:
            h_BLD = block(h_BLD)
        normed: Tensor = self.norm(h_BLD)
        return normed


def noised_loss(
    model: nn.Module, noise: Noise, batch: Rows, u_B: Tensor, u_FBL: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss and row losses of a batch, all passes in one forward."""
    noised = noise.corrupt(*batch, u_B, u_FBL, MASK)
    passes, count = noised.ids_PBL.shape[:2]
    logits = model(noised.ids_PBL.flatten(0, 1))
    nll = token_nll(logits, batch.ids_BL.repeat(passes, 1), MASK)
    found = noised.loss(nll.unflatten(0, (passes, count)))
    return found.loss, found.row_B


@torch.no_grad()
def evaluation_loss(model: nn.Module, held_out: Rows, draws: int = 4) -> float:
    """Mean loss at uniform stratified rates from a fixed seed, whatever the model was trained with."""
    count = len(held_out.ids_BL)
    total = 0.0
    for seed in range(draws):
        u_B, u_FBL = evaluation_uniforms(count, LENGTH, seed)
        total += noised_loss(model, Noise(), held_out, u_B, u_FBL)[0].item()
    return total / draws


@torch.no_grad()
def exact_match(model: nn.Module, held_out: Rows) -> float:
    """Share of rows sorted right, the surest token unmasked at each of 12 steps."""
    ids_BL = held_out.ids_BL.masked_fill(held_out.eligible_BL, MASK)
    for _ in range(DIGITS):
        logits = model(ids_BL)
        logits[..., MASK] = -torch.inf
        sure_BL, token_BL = logits.softmax(-1).max(-1)
        place_B = sure_BL.masked_fill(ids_BL != MASK, -1.0).argmax(1, keepdim=True)
        ids_BL = ids_BL.scatter(1, place_B, token_BL.gather(1, place_B))
    return (ids_BL == held_out.ids_BL).all(1).double().mean().item()
