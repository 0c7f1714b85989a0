"""The grid world of GAP: coloured cells, operations on them, and rows for a decoder.

A picture of SIDE x SIDE coloured cells is changed by some operations; the question is the colour of a
cell at the end. A frozen encoder makes a vector of every patch of the picture, by way of noisy
pixels. The picture after each operation can stand between question and answer as latents, as words
(one for each cell: what a note in words would say), or as filler without content.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.visual_latent import LatentRows, LatentTags
from burnish.seeds import Seeds

OPS = ("rotate", "flip", "transpose", "shift rows", "shift columns", "swap colours")
COLOUR_NAMES = ("red", "blue", "green", "yellow", "black", "white")
COLOURS, PIXELS, NOISE = len(COLOUR_NAMES), 64, 0.1
FORMATS = ("text", "latents", "notes", "filler")
Group = tuple[int, str]
"""Number of operations, and format."""


class Words(NamedTuple):
    """Token ids of the world."""

    tags: LatentTags
    ops: tuple[int, ...]
    cells: tuple[int, ...]
    colours: tuple[int, ...]


def own_words(side: int) -> Words:
    """For a decoder with a vocabulary of its own; 0 is the padding."""
    cells, first = side * side, 4 + len(OPS)
    return Words(
        LatentTags(start=1, end=2, stop=3),
        tuple(range(4, first)),
        tuple(range(first, first + cells)),
        tuple(range(first + cells, first + cells + COLOURS)),
    )


def vocabulary(words: Words) -> int:
    """Size of the vocabulary of `own_words`."""
    return max(words.colours) + 1


class Example(NamedTuple):
    """Questions with the same number of operations, on the CPU."""

    grids: list[Tensor]
    """(B, cells) each: the picture, then after each operation."""
    ops_BN: Tensor
    asked_B1: Tensor

    @property
    def truth_B(self) -> Tensor:
        return self.grids[-1].gather(1, self.asked_B1)[:, 0]

    def chosen(self, mask_B: Tensor) -> Example:
        return Example(
            [grid[mask_B] for grid in self.grids], self.ops_BN[mask_B], self.asked_B1[mask_B]
        )


@dataclass(frozen=True)
class World:
    """Sizes, words, and the frozen encoder of one seed."""

    seed: int
    side: int
    operations: int
    """At most; every question has 1 to so many."""
    size: int
    """Width of the decoder."""
    scale: float
    """Mean length of a vision embedding."""
    words: Words
    patch: int = 1
    """Cells along the side of a latent's patch; a patch of the picture itself is one cell."""

    @property
    def cells(self) -> int:
        return self.side * self.side

    @property
    def slots(self) -> int:
        """Latents of a span."""
        return (self.side // self.patch) ** 2

    def encode(self, grids: Tensor, draw: torch.Generator, patch: int = 1) -> Tensor:
        """Colours (B, cells) to one vector a patch (B, patches, D), by way of noisy pixels."""
        pixels = (
            drawn(self.seed, "palette", COLOURS, 3)[grids].unsqueeze(2).expand(-1, -1, PIXELS, 3)
        )
        pixels = pixels + NOISE * torch.randn(pixels.shape, generator=draw)
        across = self.side // patch
        split = pixels.reshape(-1, across, patch, across, patch, 3 * PIXELS)
        patches = split.permute(0, 1, 3, 2, 4, 5).reshape(len(grids), across**2, -1)
        filters = drawn(self.seed, f"filters {patch}", patches.shape[-1], self.size)
        places = drawn(self.seed, f"places {patch}", across**2, self.size)
        seen = patches @ filters / patches.shape[-1] ** 0.5
        return (seen + places) * (self.scale / (2 * self.size) ** 0.5)

    def examples(self, count: int, operations: int, draw: torch.Generator) -> Example:
        """Random questions with so many operations."""
        grids = [torch.randint(COLOURS, (count, self.cells), generator=draw)]
        ops = torch.randint(len(OPS), (count, operations), generator=draw)
        asked = torch.randint(self.cells, (count, 1), generator=draw)
        for step in range(operations):
            grids.append(changed(grids[-1], ops[:, step], self.side))
        return Example(grids, ops, asked)

    def rows(self, example: Example, format_: str, draw: torch.Generator) -> LatentRows:
        """Image, operations, cell, then what stands between, answer and stop."""
        count, words = len(example.ops_BN), self.words
        parts = [torch.zeros(count, self.cells, dtype=torch.long)]
        parts += [torch.tensor(words.ops)[example.ops_BN]]
        parts += [torch.tensor(words.cells)[example.asked_B1]]
        kinds = "i" * self.cells + "q" * (example.ops_BN.shape[1] + 1)
        vectors = [self.encode(example.grids[0], draw)]
        colours = torch.tensor(words.colours)
        for grid in () if format_ == "text" else example.grids[1:]:
            if format_ == "notes":
                parts.append(colours[grid])
                kinds += "t" * self.cells
                continue
            slot = torch.zeros(count, self.slots, dtype=torch.long)
            parts += [filled(count, words.tags.start), slot, filled(count, words.tags.end)]
            kinds += "t" + "z" * self.slots + "t"
            vectors.append(self.encode(grid, draw, self.patch))
        parts += [colours[example.truth_B].unsqueeze(1), filled(count, words.tags.stop)]
        kinds += "tt"
        ids = torch.cat(parts, 1)
        of = {kind: torch.tensor([k == kind for k in kinds]) for kind in "izt"}
        placed = torch.zeros(count, len(kinds), self.size)
        placed[:, of["i"] | of["z"]] = torch.cat(vectors, 1)
        labels = ids.masked_fill(~of["t"], -100)
        mask = torch.ones_like(ids, dtype=torch.bool)
        is_image, is_latent = (of[kind].expand_as(ids).clone() for kind in "iz")
        return LatentRows(ids, mask, placed, is_image, is_latent, labels)

    def prompts(self, example: Example, draw: torch.Generator) -> LatentRows:
        """Image, operations and cell alone."""
        whole = self.rows(example, "text", draw)
        end = self.cells + example.ops_BN.shape[1] + 1
        return LatentRows(*(part[:, :end] for part in whole[:5] if part is not None))


@lru_cache(64)
def drawn(seed: int, what: str, *shape: int) -> Tensor:
    """Normal numbers of the frozen encoder."""
    draw = torch.Generator().manual_seed(Seeds(seed).for_("gap encoder", what))
    return torch.randn(*shape, generator=draw)


def joined(groups: list[LatentRows]) -> LatentRows:
    """Groups of rows of different lengths as one batch, padded on the left."""
    length = max(rows.ids_BT.shape[1] for rows in groups)
    padded: list[list[Tensor]] = []
    for rows in groups:
        gap = length - rows.ids_BT.shape[1]
        padded.append(
            [
                torch.nn.functional.pad(
                    part, (0, 0, gap, 0) if part.ndim == 3 else (gap, 0), value=v
                )
                for part, v in zip(rows, (0, False, 0.0, False, False, -100), strict=True)
                if part is not None
            ]
        )
    return LatentRows(*(torch.cat(parts) for parts in zip(*padded, strict=True)))


def moved(rows: LatentRows, device: torch.device) -> LatentRows:
    """Rows on another device."""
    return LatentRows(*(None if part is None else part.to(device) for part in rows))  # type: ignore[arg-type]


def filled(count: int, token: int) -> Tensor:
    """(count, 1) of one token."""
    return torch.full((count, 1), token)


def changed(grids: Tensor, operations: Tensor, side: int) -> Tensor:
    """Grids (B, cells) after the operation of each row (B,)."""
    square = grids.view(-1, side, side)
    swapped = torch.where(square == 0, 1, torch.where(square == 1, 0, square))
    all_ = torch.stack(
        (
            square.rot90(1, (1, 2)),
            square.flip(2),
            square.transpose(1, 2),
            square.roll(1, 1),
            square.roll(1, 2),
            swapped,
        )
    )
    return all_[operations, torch.arange(len(grids))].reshape(len(grids), -1)
