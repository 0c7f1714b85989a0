"""The config of an audio tokenizer, in the Hugging Face convention."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import transformers
from msgspec import Meta

from burnish.boundary import NonNegative, Positive, PositiveInt, PositiveShare
from burnish.errors import ArgumentError
from burnish.models.folders import Size, read_settings

Taps = Annotated[list[Size], Meta(min_length=1)]


class AudioTokenizerConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """Sizes of an `AudioTokenizerModel` and its bottleneck.

    `bottleneck` is plain, kl (a VAE), sigma (noise of a random strength; also "noise"), norm
    (normalised over channels) or norm+noise (both; F3).

    >>> config = AudioTokenizerConfig(sampling_rate=8000, n_fft=160, frame_hop=40, strides=[8])
    >>> config.hop_length, config.frame_rate
    (320, 25.0)
    """

    model_type = "burnish-audio-tokenizer"

    sampling_rate: PositiveInt = 8000
    n_fft: Size = 160
    """Samples of a window of the spectrum."""
    frame_hop: Size = 40
    """Samples from one window to the next; even, and at most half of n_fft."""
    strides: Taps = (8,)  # type: ignore[assignment]  # a default that nobody can change
    """By how much each stage of the encoder lowers the rate of windows."""
    hidden_size: Size = 160
    latent_size: Size = 64
    kernel_size: Size = 7
    residual_dilations: Taps = (1, 1)  # type: ignore[assignment]
    """One residual unit each, in every stage."""
    bottleneck: Literal["plain", "kl", "sigma", "norm", "norm+noise"] = "norm+noise"
    norm_eps: Positive = 1e-5
    noise_gamma: NonNegative = 1.0
    """norm+noise: the strength is uniform from 0 to this, one a sequence."""
    sigma_std: NonNegative = 0.625
    """sigma: standard deviation of the strength, which is normal; VibeVoice's 0.5 / 0.8."""
    features: Literal["magnitude", "complex"] = "magnitude"
    """What the encoder reads of a window: logarithms of magnitudes, or the compressed complex spectrum."""
    compression: PositiveShare = 0.3
    """Power that magnitudes of complex spectra are raised to, before the encoder and behind the decoder."""
    causal: bool = True
    """Convolutions look at the past alone: audio can be encoded and decoded in chunks."""

    def __post_init__(self, **kwargs: Any) -> None:
        if str(self.bottleneck) == "noise":
            self.bottleneck = "sigma"
        read_settings(self)
        if self.frame_hop % 2 or self.n_fft % 2 or self.n_fft < 2 * self.frame_hop:
            raise ArgumentError(
                f"n_fft: got {self.n_fft} with frame_hop {self.frame_hop}, expected even numbers and "
                "n_fft at least twice frame_hop"
            )
        super().__post_init__(**kwargs)

    @property
    def hop_length(self) -> int:
        """Samples of one latent."""
        return int(self.frame_hop * self.frame_stride)

    @property
    def frame_stride(self) -> int:
        """Windows of one latent."""
        return math.prod(self.strides)

    @property
    def frame_rate(self) -> float:
        """Latents a second."""
        return float(self.sampling_rate / self.hop_length)

    @property
    def edge(self) -> int:
        """Samples that a window reaches beyond its hop, on either side: what a stream is late by."""
        return int((self.n_fft - self.frame_hop) // 2)

    @property
    def is_normalised(self) -> bool:
        """Whether latents are normalised over channels."""
        return self.bottleneck in ("norm", "norm+noise")
