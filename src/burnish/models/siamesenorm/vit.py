"""A small vision transformer over any residual topology, laid out as DeiT.

Layer norms with eps 1e-6, a class token, learned positions, biases, DropPath once on each update.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from burnish.arguments import as_whole
from burnish.errors import ArgumentError
from burnish.models.blocks import Attention, GeluMLP, OutputLinear, ResidualStack, Topology
from burnish.tensors import check_tensor


class VisionTransformer(nn.Module):
    """Images (B, C, H, W) to class logits (B, classes).

    >>> import torch
    >>> from burnish.models.siamesenorm import VisionTransformer
    >>> model = VisionTransformer(image=8, patch=4, size=16, layers=2, heads=2, classes=3)
    >>> tuple(model(torch.zeros(5, 3, 8, 8)).shape)
    (5, 3)
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
        as_whole("classes", classes, low=1)
        if image % patch:
            raise ArgumentError(f"patch: got {patch}, expected a divisor of the image's {image}")
        topology = Topology(norm_topology, norm="layer", eps=1e-6)
        self.shape = (channels, image, image)
        self.patches = nn.Conv2d(channels, size, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, size))
        self.stack = ResidualStack(
            vision_blocks(size, heads, layers, topology), size, topology, drop_path=drop_path
        )
        self.head = nn.Linear(size, classes)
        first_weights(self, layers)

    def forward(self, images: Tensor) -> Tensor:
        """The class token's logits."""
        check_tensor(images, "images", "(B, C, H, W)", 4)
        if tuple(images.shape[1:]) != self.shape:
            raise ArgumentError(
                f"images: got shape {tuple(images.shape)}, expected (B, {', '.join(map(str, self.shape))})"
            )
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(tokens), -1, -1), tokens), dim=1)
        logits: Tensor = self.head(self.stack(tokens + self.positions)[:, 0])
        return logits


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
