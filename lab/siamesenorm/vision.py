"""Small vision and diffusion transformers over any residual topology; flow matching on drawn shapes.

The diffusion transformer is adaLN-Zero: shift, scale and gate of every sublayer come from time and
class, and start at zero, so that a new model leaves Y as it is. Flow matching:
`x = (1 - tau) noise + tau image`, and the model learns the velocity `image - noise`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.models.blocks import Attention, OutputLinear, ResidualStack, Topology
from burnish.models.blocks.flow import euler_sample, on_line, time_waves
from burnish.models.blocks.residual import SublayerNorms

SHAPES = ("disc", "square", "cross")


class VisionTransformer(nn.Module):
    """Images (B, C, H, W) to class logits (B, classes), laid out as DeiT.

    Layer norms with eps 1e-6, a class token, learned positions, biases, DropPath once on each update.
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
        classes: int = 10,
        norm_topology: str = "siamese_post_pre",
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        topology = Topology(norm_topology, norm="layer", eps=1e-6)
        self.patches = nn.Conv2d(channels, size, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, size))
        self.stack = ResidualStack(vision_blocks(size, heads, layers, topology), size, topology)
        drop_updates(self.stack, drop_path)
        self.head = nn.Linear(size, classes)
        first_weights(self, layers)

    def forward(self, images: Tensor) -> Tensor:
        """The class token's logits."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(tokens), -1, -1), tokens), dim=1)
        logits: Tensor = self.head(self.stack(tokens + self.positions)[:, 0])
        return logits


def drop_updates(stack: ResidualStack, most: float) -> None:
    """In training, leave out whole updates of rows; the chance rises from 0 to `most` in the last block."""
    step = most / max(len(stack) - 1, 1)
    for index, block in enumerate(stack):
        for part in (block.self_attn, block.mlp):
            part.register_forward_hook(partial(_dropped, 1 - step * index))


def _dropped(kept: float, module: nn.Module, _args: Any, update: Tensor) -> Tensor:
    if kept == 1 or not module.training:
        return update
    shape = (len(update), *[1] * (update.dim() - 1))
    drawn = torch.empty(shape, device=update.device).bernoulli_(kept)
    return update * drawn.to(update.dtype).div_(kept)


class GeluMLP(nn.Module):
    """fc2(gelu(fc1(z))), as vision transformers have it."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, inner)
        self.fc2 = OutputLinear(inner, size)

    def forward(self, z: Tensor, **_: Any) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(z)))
        return out


def vision_blocks(
    size: int, heads: int, layers: int, topology: Topology
) -> list[tuple[nn.Module, nn.Module]]:
    """Attention that sees everything, and a GELU feed-forward four times as wide."""
    qkv_norm = "qkv" if topology.needs_qkv_norm else "none"
    return [
        (
            Attention(size, heads, bias=True, causal=False, qkv_norm=qkv_norm, eps=topology.eps),
            GeluMLP(size, 4 * size),
        )
        for _ in range(layers)
    ]


@torch.no_grad()
def first_weights(model: nn.Module, layers: int, std: float = 0.02) -> None:
    """Normal weights, those that end in a stream smaller by the root of twice the depth."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=std)
        elif isinstance(module, nn.Linear | nn.Conv2d):
            is_output = isinstance(module, OutputLinear)
            nn.init.trunc_normal_(
                module.weight, std=std / (2 * layers) ** 0.5 if is_output else std
            )
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, parameter in model.named_parameters(recurse=False):
        if name in ("class_token", "positions"):
            nn.init.trunc_normal_(parameter, std=std)


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


def leave_modulated(stack: ResidualStack) -> None:
    """Take weight and bias from the norm right before each sublayer, which is modulated."""
    for norms in stack.modules():
        if isinstance(norms, SublayerNorms):
            parts = (norms.in_norm, norms.y_norm, norms.x_norm)
            last: Any = next((part for part in parts if part is not None), None)
            if last is not None:
                last.weight = last.bias = None


class DiffusionTransformer(nn.Module):
    """Noised images, times and classes to velocities."""

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
        topology = Topology(norm_topology, norm="layer", eps=1e-6)
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
        leave_modulated(self.stack)
        self.modulation = nn.Linear(size, 2 * size)
        self.out = nn.Linear(size, patch * patch * channels)
        first_weights(self, layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and (name == "out" or name.endswith("modulation")):
                nn.init.zeros_(module.weight)

    def forward(self, noised: Tensor, tau: Tensor, labels: Tensor) -> Tensor:
        """(B, C, H, W), (B,), (B,) -> (B, C, H, W)."""
        rows = len(noised)
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
