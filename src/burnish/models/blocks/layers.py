"""Norms, attention with rotary positions and feed-forwards: what a residual network is made of.

Norms compute in float32 at least, with eps inside the root. Sublayers are called in one way,
`f(z, rotation=..., mask=..., cache=...)`, with (B, T, D) in and out.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from burnish.arguments import refused

QkvNorm = Literal["none", "qk", "qkv"]
"""Which heads get a norm before they are rotated."""
STEADY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of attention without cuDNN's, which fails now and then where shapes change from call to call
("mha_graph.execute", PyTorch issue 190321; seen here in training on texts of many lengths)."""


def rms_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), times the weight: (..., D) -> (..., D) in the type of x."""
    wide = x if x.dtype == torch.float64 else x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return _affine(wide, weight, bias).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps), times the weight: (..., D) -> (..., D) in the type of x."""
    wide = x if x.dtype == torch.float64 else x.float()
    wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return _affine(wide, weight, bias).to(x.dtype)


NORMS = {"rms": rms_norm, "layer": layer_norm}


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, None, self.eps)


class LayerNorm(nn.Module):
    """Layer norm over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * weight.to(x.dtype)
    return x if bias is None else x + bias.to(x.dtype)


class Rotation(NamedTuple):
    """Cosine and sine of every position, (B or 1, 1, T, head_dim) each."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Rotation:
    """Rotary angles of positions (B, T) or (T,), computed in float32.

    Computed in each pass: a table would be one more buffer that loading leaves empty.
    """
    # In float64: float32 powers would move positions of thousands by a rounding error.
    pairs = torch.arange(head_dim // 2, dtype=torch.float64, device=positions.device)
    frequencies = torch.pow(theta, -2 * pairs / head_dim).float()
    positions = positions if positions.dim() == 2 else positions.unsqueeze(0)
    angles = (positions.unsqueeze(-1).float() * frequencies).unsqueeze(1)
    angles = torch.cat((angles, angles), dim=-1)
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(heads: Tensor, by: Rotation) -> Tensor:
    """Turn the halves of each head as pairs: (B, H, T, head_dim) -> the same."""
    first, second = heads.chunk(2, dim=-1)
    return heads * by.cos + torch.cat((-second, first), dim=-1) * by.sin


class OutputLinear(nn.Linear):
    """A linear map that ends in a residual stream; its first weights are smaller in deep networks."""


class Attention(nn.Module):
    """Grouped-query attention; causal, bidirectional or by a mask."""

    def __init__(
        self,
        size: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        qkv_norm: QkvNorm = "none",
        eps: float = 1e-5,
        bias: bool = False,
        causal: bool = True,
        index: int = 0,
    ) -> None:
        """`index` is the layer's number in the cache."""
        super().__init__()
        kv_heads = kv_heads or heads
        self.head_dim = head_dim or size // heads
        if (head_dim is None and size % heads) or heads % kv_heads or self.head_dim % 2:
            raise refused("heads", (heads, kv_heads), f"parts of {size}, of an even size")
        self.heads, self.kv_heads, self.causal, self.index = heads, kv_heads, causal, index
        self.q_proj = nn.Linear(size, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(size, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(size, kv_heads * self.head_dim, bias=bias)
        self.o_proj = OutputLinear(heads * self.head_dim, size, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, eps) if qkv_norm != "none" else None
        self.k_norm = RMSNorm(self.head_dim, eps) if qkv_norm != "none" else None
        self.v_norm = RMSNorm(self.head_dim, eps) if qkv_norm == "qkv" else None

    def forward(
        self,
        z: Tensor,
        *,
        rotation: Rotation | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
        **_: Any,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        `mask` is bool (True: is seen) or added to the scores, (B or 1, 1, T, keys); without one the
        layer is causal, or sees everything. `cache.update(key, value, index)` gives back all keys.
        """
        rows, length, _size = z.shape
        query = self._heads(self.q_proj(z), self.heads, self.q_norm)
        key = self._heads(self.k_proj(z), self.kv_heads, self.k_norm)
        value = self._heads(self.v_proj(z), self.kv_heads, self.v_norm)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None:
            key, value = cache.update(key, value, self.index)
        times = self.heads // self.kv_heads
        if times > 1:
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        # One new token sees every key; several behind a cache come with a mask.
        is_causal = self.causal and mask is None and length > 1
        with sdpa_kernel(STEADY) if query.is_cuda else nullcontext():
            attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal)
        out: Tensor = self.o_proj(attended.transpose(1, 2).reshape(rows, length, -1))
        return out

    def _heads(self, projected: Tensor, count: int, norm: nn.Module | None) -> Tensor:
        heads: Tensor = projected.view(*projected.shape[:-1], count, self.head_dim)
        if norm is not None:
            heads = norm(heads)
        return heads.transpose(1, 2)


class SwiGLU(nn.Module):
    """down(silu(gate(z)) * up(z))."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = OutputLinear(inner, size, bias=False)

    def forward(self, z: Tensor, **_: Any) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(z)) * self.up_proj(z))
        return out
