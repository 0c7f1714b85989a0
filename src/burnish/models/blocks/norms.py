"""Norms that compute in float32 at least, with eps inside the root."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rms_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), times the weight: (..., D) -> (..., D) in the type of x."""
    wide = _wide(x)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return _affine(wide, weight, bias).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps), times the weight: (..., D) -> (..., D) in the type of x."""
    wide = _wide(x)
    wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return _affine(wide, weight, bias).to(x.dtype)


NORMS = {"rms": rms_norm, "layer": layer_norm}


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, None, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class LayerNorm(nn.Module):
    """Layer norm over the last axis, with a bias unless it has no weight either."""

    def __init__(self, size: int, eps: float = 1e-6, *, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size)) if affine else None
        self.bias = nn.Parameter(torch.zeros(size)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


def make_norm(kind: str, size: int, eps: float, *, affine: bool = True) -> nn.Module:
    """An `RMSNorm` ("rms") or a `LayerNorm` ("layer")."""
    return RMSNorm(size, eps) if kind == "rms" else LayerNorm(size, eps, affine=affine)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * weight.to(x.dtype)
    return x if bias is None else x + bias.to(x.dtype)
