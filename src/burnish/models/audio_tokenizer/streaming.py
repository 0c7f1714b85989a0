"""Encode and decode audio in chunks of any size, as if it were whole.

A stream keeps what the convolutions saw of the past and the samples of an unfinished window, so its
memory does not grow. Latents are late by `config.edge` samples, and so are samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.boundary import public_method
from burnish.errors import ArgumentError
from burnish.models.audio_tokenizer.modeling_audio_tokenizer import (
    AudioTokenizerModel,
    State,
    as_rows,
)
from burnish.models.audio_tokenizer.spectral import overlapped

if TYPE_CHECKING:
    from burnish.models.audio_tokenizer.modeling_audio_tokenizer import Latents, Sounds


class _Stream:
    """What both directions share: the model, what its convolutions keep, and the rows."""

    @public_method
    def __init__(self, model: AudioTokenizerModel) -> None:
        if not model.config.causal:
            raise ArgumentError("model: its convolutions look ahead, expected causal = true")
        self.model, self.state = model, State()
        self.rows = 0


class StreamingEncoder(_Stream):
    """Samples in chunks to latents; equal to `model.encode` of the whole.

    >>> from burnish.models.audio_tokenizer import StreamingEncoder, new_tokenizer
    >>> model = new_tokenizer(hidden_size=16, latent_size=4).eval()
    >>> encoder = StreamingEncoder(model)
    >>> parts = [encoder.push(torch.zeros(1, 500)), encoder.push(torch.zeros(1, 500)), encoder.finish()]
    >>> [part.shape[1] for part in parts]
    [1, 1, 2]
    """

    def __init__(self, model: AudioTokenizerModel) -> None:
        super().__init__(model)
        self.buffer: Tensor | None = None
        self.received = 0

    @public_method
    @torch.no_grad()
    def push(self, samples: Sounds) -> Tensor:
        """The latents (B, t, D) that samples (B, n) or (n,) complete."""
        samples_Bn = as_rows(samples)
        self.rows = len(samples_Bn)
        self.received += samples_Bn.shape[1]
        return self._take(samples_Bn.to(self.model.device))

    @torch.no_grad()
    def finish(self) -> Tensor:
        """The latents of what is left, (B, t, D)."""
        config = self.model.config
        missing = -self.received % config.hop_length
        return self._take(torch.zeros(self.rows, missing + config.edge, device=self.model.device))

    def _take(self, samples_Bn: Tensor) -> Tensor:
        config = self.model.config
        if self.buffer is None:
            self.buffer = samples_Bn.new_zeros(len(samples_Bn), config.edge)
        self.buffer = torch.cat((self.buffer, samples_Bn), dim=1)
        windows = max((self.buffer.shape[1] - config.n_fft) // config.frame_hop + 1, 0)
        windows -= windows % config.frame_stride
        if not windows:
            return samples_Bn.new_zeros(
                len(samples_Bn), 0, config.latent_size, dtype=self.model.dtype
            )
        reach = (windows - 1) * config.frame_hop + config.n_fft
        code = self.model.code_windows(self.buffer[:, :reach], self.state)
        self.buffer = self.buffer[:, windows * config.frame_hop :]
        return self.model.split(code)[0]


class StreamingDecoder(_Stream):
    """Latents in chunks to samples; equal to `model.decode` of the whole.

    >>> from burnish.models.audio_tokenizer import StreamingDecoder, new_tokenizer
    >>> decoder = StreamingDecoder(new_tokenizer(hidden_size=16, latent_size=4).eval())
    >>> decoder.push(torch.zeros(1, 3, 4)).shape[1], decoder.finish().shape[1]
    (900, 60)
    """

    def __init__(self, model: AudioTokenizerModel, *, renormalise: bool = False) -> None:
        super().__init__(model)
        self.renormalise = renormalise
        self.signal: Tensor | None = None
        self.weight: Tensor | None = None
        self.skip = model.config.edge
        """Samples before the first hop that are still to be dropped."""

    @public_method
    @torch.no_grad()
    def push(self, latents: Latents) -> Tensor:
        """The samples (B, n) that latents (B, t, D) or (t, D) complete."""
        latents_BTD = self.model.prepared(latents, self.renormalise)
        self.rows = len(latents_BTD)
        if not latents_BTD.shape[1]:
            return torch.zeros(len(latents_BTD), 0, device=self.model.device)
        frames_BKF = self.model.decoded(latents_BTD, self.state)
        config = self.model.config
        signal, weight = overlapped(frames_BKF, config.n_fft, config.frame_hop)
        # Windows of the chunk before reach into this one.
        if self.signal is not None and self.weight is not None:
            signal = signal + F.pad(self.signal, (0, signal.shape[1] - self.signal.shape[1]))
            weight = weight + F.pad(self.weight, (0, weight.shape[1] - self.weight.shape[1]))
        ready = frames_BKF.shape[1] * config.frame_hop
        self.signal, self.weight = signal[:, ready:], weight[:, ready:]
        first = min(self.skip, ready)
        self.skip -= first
        return signal[:, first:ready] / weight[:, first:ready]

    @torch.no_grad()
    def finish(self) -> Tensor:
        """The samples that are left, (B, n)."""
        if self.signal is None or self.weight is None:
            return torch.zeros(self.rows, 0, device=self.model.device)
        left = slice(self.skip, self.model.config.edge)
        return self.signal[:, left] / self.weight[:, left]
