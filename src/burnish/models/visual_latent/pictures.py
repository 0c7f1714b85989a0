"""Pictures as vectors of their patches, by a frozen encoder without training.

    encoder = PatchEncoder(size=576, patch=8, scale=3.2, seed=0)
    vectors_RCD = encoder(read_picture("grid.png"))
    encoder.decode(latents_KD, grid=(3, 3))                 # what latents show, one colour a patch

A patch is a fixed random map of its pixels, and of its place. That is enough where pictures are drawn
(grids, charts); a vision encoder of your own is a function `mine.py:encode` from pixels (H, W, 3) to
vectors (rows, columns, D).
"""

from __future__ import annotations

import base64
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from burnish.arguments import as_number, as_whole
from burnish.errors import ArgumentError, UserError
from burnish.models.visual_latent.objective import pool_tokens
from burnish.tensors import check_finite

MOST_SIDE = 4096
"""Pixels of a side."""
PLACES = 64
"""Rows and columns of patches that the encoder can tell apart."""


class Encoder(Protocol):
    """Makes vectors of a picture."""

    def __call__(self, pixels_HW3: Tensor) -> Tensor:
        """uint8 (H, W, 3) -> (rows, columns, D)."""
        ...


class PatchEncoder:
    """A random map of patches, fixed by its seed; nothing of it is trained."""

    def __init__(self, size: int, patch: int = 8, *, scale: float = 1.0, seed: int = 0) -> None:
        """`size`: width of the language model; `scale`: about the length of a vector."""
        self.size = as_whole("size", size, low=1, high=1 << 16)
        self.patch = as_whole("patch", patch, low=1, high=MOST_SIDE)
        self.scale = as_number("scale", scale, above=0)
        self.seed = as_whole("seed", seed, low=0)

    @cached_property
    def _filters(self) -> Tensor:
        draw = torch.Generator().manual_seed(self.seed % 2**63)
        wide = 3 * self.patch**2
        filters: Tensor = torch.randn(wide, self.size, generator=draw) / wide**0.5
        return filters

    @cached_property
    def _places(self) -> Tensor:
        draw = torch.Generator().manual_seed((self.seed + 1) % 2**63)
        rows, columns = torch.randn(2, PLACES, self.size, generator=draw)
        places: Tensor = (rows.unsqueeze(1) + columns.unsqueeze(0)) / 2**0.5
        return places

    @property
    def _factor(self) -> float:
        # Pixels of -1 to 1 have a mean square of about 1/3, places one of 1.
        return float(self.scale / (self.size * 4 / 3) ** 0.5)

    def __call__(self, pixels_HW3: Tensor) -> Tensor:
        """Vectors (rows, columns, D) of a picture whose sides are multiples of the patch."""
        pixels_HW3 = as_pixels(pixels_HW3)
        high, wide = (self._along(side) for side in pixels_HW3.shape[:2])
        scaled = pixels_HW3.float() / 127.5 - 1
        split = scaled.view(high, self.patch, wide, self.patch, 3).permute(0, 2, 1, 3, 4)
        seen = split.reshape(high, wide, -1) @ self._filters
        return (seen + self._places[:high, :wide]) * self._factor

    def decode(self, latents_KD: Tensor, grid: tuple[int, int], shown: tuple[int, int]) -> Tensor:
        """The colour of each patch that fits vectors best, uint8 (rows, columns, 3).

        `grid`: patches of the whole picture, of which the latents are pooled to `shown`.
        """
        if latents_KD.ndim != 2 or latents_KD.shape[1] != self.size:
            shape = tuple(latents_KD.shape)
            raise ArgumentError(f"latents_KD: got shape {shape}, expected (K, {self.size})")
        check_finite(latents_KD, "latents_KD")
        if shown[0] * shown[1] != len(latents_KD):
            raise ArgumentError(
                f"shown: got {shown[0]} x {shown[1]} for {len(latents_KD)} latents; expected as many"
            )
        places = self._places[: grid[0], : grid[1]].flatten(0, 1)
        places_KD = pool_tokens(places, grid, len(latents_KD))
        flat_3D = self._filters.view(self.patch**2, 3, self.size).sum(0)
        seen_KD = latents_KD.detach().float().cpu() / self._factor - places_KD
        colours_K3 = torch.linalg.lstsq(flat_3D.T, seen_KD.T).solution.T
        pixels: Tensor = ((colours_K3 + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        return pixels.view(*shown, 3)

    def _along(self, side: int) -> int:
        count, rest = divmod(side, self.patch)
        if rest or not 1 <= count <= PLACES:
            raise ArgumentError(
                f"a picture with a side of {side} pixels; expected 1 to {PLACES} patches of "
                f"{self.patch}. Resize it, or change the patch"
            )
        return count


def read_picture(value: Any, root: Path | None = None) -> Tensor:
    """uint8 (H, W, 3) of a file, a `data:` text, bytes, or rows of pixels (H, W, 3).

    With a `root`, paths start there and may not leave it, also not by a link.
    """
    if isinstance(value, str | Path | bytes):
        return _decoded(value, root)
    return as_pixels(value)


def as_pixels(value: Any) -> Tensor:
    """uint8 (H, W, 3) of rows of pixels; anything else is refused."""
    try:
        pixels = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"a picture: got {type(value).__name__}, expected pixels") from error
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.numel():
        raise ArgumentError(f"a picture of shape {tuple(pixels.shape)}; expected (H, W, 3)")
    is_whole = not pixels.is_floating_point() and not pixels.is_complex()
    if is_whole and pixels.dtype != torch.uint8:
        pixels = pixels.long()  # torch compares no unsigned numbers of more than 8 bit
    if not is_whole or pixels.min() < 0 or pixels.max() > 255:
        raise ArgumentError("a picture: expected whole numbers from 0 to 255")
    return pixels.to(torch.uint8)


def _decoded(value: str | Path | bytes, root: Path | None) -> Tensor:
    """A file, bytes or `data:` text, opened under the limits of `burnish.media`."""
    from burnish.media import open_image

    name = "a picture of bytes" if isinstance(value, bytes) else f"picture '{str(value)[:60]}'"
    try:
        if isinstance(value, str) and value.startswith("data:"):
            value = base64.b64decode(value.partition(",")[2], validate=True)
        if root is not None and not isinstance(value, bytes):
            value = (root / value).resolve()
            if not value.is_relative_to(root.resolve()):
                raise UserError(f"it leads out of {root}; expected a file inside")
        image = open_image(value)
    except (OSError, ValueError, UserError) as error:
        raise ArgumentError(f"{name} cannot be read: {error}") from error
    wide, high = image.size
    if max(wide, high) > MOST_SIDE:
        raise ArgumentError(f"{name}: {wide} x {high} pixels; expected sides to {MOST_SIDE}")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(high, wide, 3)
