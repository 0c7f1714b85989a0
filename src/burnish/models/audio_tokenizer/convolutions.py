"""Convolutions over time that can run in chunks: what they saw of the past is all that a stream keeps.

    state: State = {}
    for chunk in chunks:                    # (B, C, t)
        chain(chunk, state)                 # joined, the same as chain(whole)

Without a state a whole signal is padded with zeros. All are causal unless told.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[nn.Module, Tensor]
"""What each convolution keeps of the chunks before; empty at the start of a stream."""


class Conv(nn.Conv1d):
    """A convolution over time whose output has 1/stride of the frames; causal unless told."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        causal: bool,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, dilation=dilation, groups=groups)
        self.reach = (kernel - 1) * dilation + 1 - stride
        self.causal = causal

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        """(B, C, T) -> (B, C', T / stride)."""
        if state is None:
            right = 0 if self.causal else self.reach // 2
            x = F.pad(x, (self.reach - right, right))
        elif self.reach:
            past = state[self] if self in state else x.new_zeros(*x.shape[:2], self.reach)
            x = torch.cat((past, x), dim=-1)
            state[self] = x[..., -self.reach :]
        return super().forward(x)


class Output(Conv):
    """The last convolution of the decoder; begins small, for a quiet first reconstruction."""


class Upsample(nn.ConvTranspose1d):
    """A transposed convolution to `stride` times as many frames; causal unless told."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, causal: bool) -> None:
        super().__init__(inputs, outputs, 2 * stride, stride=stride)
        self.factor, self.causal = stride, causal

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:  # type: ignore[override]
        """(B, C, T) -> (B, C', T stride)."""
        y = F.conv_transpose1d(x, self.weight, stride=self.factor)
        frames = x.shape[-1] * self.factor
        first = 0 if self.causal else self.factor // 2
        if state is not None:
            if self in state:
                head = y[..., : self.factor] + state[self]
                y = torch.cat((head, y[..., self.factor :]), dim=-1)
            state[self] = y[..., frames:]
        assert self.bias is not None
        return y[..., first : first + frames] + self.bias[:, None]


class ChannelNorm(nn.Module):
    """Divides each frame by the root mean square of its channels, and scales every channel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        scale = torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
        return x * scale * self.weight[:, None]


class Narrow(Conv):
    """The last layer of a residual unit; begins small, so that a unit begins as nearly nothing."""


class Residual(nn.Module):
    """x + f(x), f being a convolution of each channel over time, a norm, and two layers around a GELU."""

    def __init__(self, size: int, kernel: int, dilation: int, *, causal: bool) -> None:
        super().__init__()
        self.over_time = Conv(size, size, kernel, dilation=dilation, groups=size, causal=causal)
        self.norm = ChannelNorm(size)
        self.widen = Conv(size, 3 * size, 1, causal=causal)
        self.narrow = Narrow(3 * size, size, 1, causal=causal)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        hidden = self.widen(self.norm(self.over_time(x, state)), state)
        found: Tensor = x + self.narrow(F.gelu(hidden), state)
        return found


class Chain(nn.ModuleList):
    """Modules one after the other, each with the state of the stream."""

    def forward(
        self, x: Tensor, state: State | None = None, mask_BL: Tensor | None = None
    ) -> Tensor:
        """(B, C, T) -> (B, C', T').

        Where `mask_BL`, in steps of one or more frames, is False, every module sees 0, as it does
        behind the end: so a module that looks ahead sees no padding.
        """
        for link in self:
            x = link(_without_padding(x, mask_BL), state)
        return x


def _without_padding(x: Tensor, mask_BL: Tensor | None) -> Tensor:
    if mask_BL is None:
        return x
    mask_BT = mask_BL.repeat_interleave(x.shape[-1] // mask_BL.shape[1], dim=1)
    return torch.where(mask_BT[:, None], x, 0.0)
