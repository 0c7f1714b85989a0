"""A small diffusion transformer over any residual topology, with flow matching on drawn shapes.

adaLN-Zero: shift, scale and gate of every sublayer come from time and class, and start at zero, so
that a new model leaves Y as it is. Flow matching: `x = (1 - tau) noise + tau image`, and the model
learns the velocity `image - noise`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.arguments import as_whole
from burnish.errors import ArgumentError
from burnish.models.blocks import ResidualStack, Topology
from burnish.models.blocks.flow import euler_sample, on_line
from burnish.models.blocks.flow_head import time_waves
from burnish.models.siamesenorm.vit import first_weights, vision_blocks
from burnish.tensors import check_shape

SHAPES = ("disc", "square", "cross")


class Modulated(nn.Module):
    """gate * F((1 + scale) * z + shift), the three from the condition; zero at first."""

    def __init__(self, inner: nn.Module, size: int) -> None:
        super().__init__()
        self.inner = inner
        self.modulation = nn.Linear(size, 3 * size)

    def forward(self, z: Tensor, *, condition: Tensor, **context: Any) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(condition)).unsqueeze(1).chunk(3, dim=-1)
        out: Tensor = gate * self.inner((1 + scale) * z + shift, **context)
        return out


class DiffusionTransformer(nn.Module):
    """Noised images, times and classes to velocities.

    >>> import torch
    >>> from burnish.models.siamesenorm import DiffusionTransformer
    >>> model = DiffusionTransformer(image=8, patch=4, size=16, layers=2, heads=2)
    >>> velocity = model(torch.zeros(2, 3, 8, 8), torch.tensor([0.1, 0.9]), torch.tensor([0, 2]))
    >>> tuple(velocity.shape), float(velocity.abs().max())
    ((2, 3, 8, 8), 0.0)
    """

    def __init__(
        self,
        *,
        image: int = 32,
        patch: int = 4,
        channels: int = 3,
        size: int = 64,
        layers: int = 6,
        heads: int = 4,
        classes: int = len(SHAPES),
        norm_topology: str = "siamese_post_pre",
    ) -> None:
        super().__init__()
        as_whole("classes", classes, low=1)
        if image % patch:
            raise ArgumentError(f"patch: got {patch}, expected a divisor of the image's {image}")
        topology = Topology(norm_topology, norm="layer", eps=1e-6, affine_input=False)
        self.image, self.patch, self.channels = image, patch, channels
        self.patches = nn.Conv2d(channels, size, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2, size))
        self.time = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))
        self.classes = nn.Embedding(classes, size)
        blocks = [
            (Modulated(first, size), Modulated(second, size))
            for first, second in vision_blocks(size, heads, layers, topology)
        ]
        self.stack = ResidualStack(blocks, size, topology)
        self.modulation = nn.Linear(size, 2 * size)
        self.out = nn.Linear(size, patch * patch * channels)
        first_weights(self, layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and (name == "out" or name.endswith("modulation")):
                nn.init.zeros_(module.weight)

    def forward(self, noised: Tensor, tau: Tensor, labels: Tensor) -> Tensor:
        """(B, C, H, W), (B,), (B,) -> (B, C, H, W)."""
        rows = len(noised)
        check_shape(noised, "noised", (rows, self.channels, self.image, self.image))
        check_shape(tau, "tau", (rows,))
        check_shape(labels, "labels", (rows,))
        tokens = self.patches(noised).flatten(2).transpose(1, 2) + self.positions
        condition = self.time(time_waves(tau.float(), tokens.shape[-1])) + self.classes(labels)
        hidden = self.stack(tokens, condition=condition)
        shift, scale = self.modulation(F.silu(condition)).unsqueeze(1).chunk(2, dim=-1)
        pixels = self.out((1 + scale) * hidden + shift)
        side, patch = self.image // self.patch, self.patch
        pixels = pixels.view(rows, side, side, patch, patch, self.channels)
        velocity: Tensor = pixels.permute(0, 5, 1, 3, 2, 4).reshape(noised.shape)
        return velocity


class FlowLoss(NamedTuple):
    """The mean squared error of velocities, and that of each row."""

    loss: Tensor
    rows: Tensor


def flow_loss(
    model: nn.Module, images: Tensor, labels: Tensor, noise: Tensor, tau: Tensor
) -> FlowLoss:
    """Flow matching with given noise (B, C, H, W) and times (B,) from 0, noise, to 1, image."""
    check_shape(noise, "noise", tuple(images.shape))
    check_shape(tau, "tau", (len(images),))
    pair = on_line(noise, images, tau)
    error = model(pair.x_tau, tau, labels) - pair.velocity
    rows = error.square().flatten(1).mean(1)
    return FlowLoss(rows.mean(), rows)


@torch.no_grad()
def sample_images(model: nn.Module, labels: Tensor, noise: Tensor, steps: int = 20) -> Tensor:
    """Images by Euler's method from given noise."""

    def velocity(images: Tensor, tau: float) -> Tensor:
        found: Tensor = model(images, torch.full((len(images),), tau, device=images.device), labels)
        return found

    return euler_sample(velocity, noise, steps)


def draw_shapes(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Coloured discs, squares and crosses on black, (N, 3, size, size) from -1 to 1, and classes (N,)."""
    labels = torch.randint(0, len(SHAPES), (count,), generator=generator)
    centre = 0.3 + 0.4 * torch.rand(count, 2, 1, 1, generator=generator)
    radius = 0.12 + 0.13 * torch.rand(count, 1, 1, generator=generator)
    colour = 0.4 + 0.6 * torch.rand(count, 3, 1, 1, generator=generator)
    line = (torch.arange(size) + 0.5) / size
    across = (line.view(1, 1, -1) - centre[:, 0]).abs()
    down = (line.view(1, -1, 1) - centre[:, 1]).abs()
    kinds = torch.stack(
        (
            across.square() + down.square() < radius.square(),
            torch.maximum(across, down) < 0.85 * radius,
            (torch.minimum(across, down) < radius / 3) & (torch.maximum(across, down) < radius),
        )
    )
    inside = kinds[labels, torch.arange(count)].unsqueeze(1)
    return torch.where(inside, 2 * colour - 1, -torch.ones(())), labels
