"""The config of an audio tokenizer, in the Hugging Face convention."""

from __future__ import annotations

import math
from typing import Any

import transformers

from burnish.arguments import as_flag, as_list, as_number, as_whole, as_word
from burnish.errors import ArgumentError, UserError

if int(transformers.__version__.partition(".")[0]) < 5:
    raise UserError(
        f"models of type burnish-audio-tokenizer need transformers 5; got {transformers.__version__}. "
        "Run: pip install --upgrade transformers"
    )

BOTTLENECKS = ("plain", "kl", "sigma", "norm", "norm+noise")
ALIASES = {"noise": "sigma"}
FEATURES = ("magnitude", "complex")
DECODERS = ("istft", "transposed")
LARGEST = 65_536


class AudioTokenizerConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """Sizes of an `AudioTokenizerModel`, its bottleneck and its decoder.

    `bottleneck` is plain, kl (a VAE), sigma (noise of a random strength; also "noise"), norm
    (normalised over channels) or norm+noise (both; F3). `features` is magnitude or complex, `decoder`
    istft or transposed.

    >>> from burnish.models.audio_tokenizer import AudioTokenizerConfig
    >>> config = AudioTokenizerConfig(sampling_rate=8000, n_fft=160, frame_hop=40, strides=[8])
    >>> config.hop_length, config.frame_rate
    (320, 25.0)
    """

    model_type = "burnish-audio-tokenizer"

    sampling_rate: int = 8000
    n_fft: int = 160
    """Samples of a window of the spectrum."""
    frame_hop: int = 40
    """Samples from one window to the next; even, and at most half of n_fft."""
    strides: list[int] | tuple[int, ...] = (8,)
    """By how much each stage of the encoder lowers the rate of windows."""
    hidden_size: int = 160
    latent_size: int = 64
    kernel_size: int = 7
    residual_dilations: list[int] | tuple[int, ...] = (1, 1)
    """One residual unit each, in every stage."""
    bottleneck: str = "norm+noise"
    norm_eps: float = 1e-5
    noise_gamma: float = 1.0
    """norm+noise: the strength is uniform from 0 to this, one a sequence."""
    sigma_std: float = 0.625
    """sigma: standard deviation of the strength, which is normal; VibeVoice's 0.5 / 0.8."""
    features: str = "magnitude"
    """What the encoder reads of a window: logarithms of magnitudes, or the compressed complex spectrum."""
    decoder: str = "istft"
    compression: float = 0.3
    """Power that magnitudes of complex spectra are raised to, before the encoder and behind the decoder."""
    causal: bool = True
    """Convolutions look at the past alone: audio can be encoded and decoded in chunks."""

    def __post_init__(self, **kwargs: Any) -> None:
        for name in ("sampling_rate", "n_fft", "frame_hop", "hidden_size", "latent_size"):
            top = 10_000_000 if name == "sampling_rate" else LARGEST
            setattr(self, name, as_whole(name, getattr(self, name), low=1, high=top))
        self.kernel_size = as_whole("kernel_size", self.kernel_size, low=1, high=1024)
        self.strides = _wholes("strides", self.strides)
        self.residual_dilations = _wholes("residual_dilations", self.residual_dilations)
        named = self.bottleneck
        known = ALIASES.get(named, named) if isinstance(named, str) else named
        self.bottleneck = as_word("bottleneck", known, BOTTLENECKS)
        as_word("features", self.features, FEATURES)
        as_word("decoder", self.decoder, DECODERS)
        as_flag("causal", self.causal)
        as_number("norm_eps", self.norm_eps, above=0)
        as_number("noise_gamma", self.noise_gamma, low=0)
        as_number("sigma_std", self.sigma_std, low=0)
        as_number("compression", self.compression, above=0, high=1)
        if self.frame_hop % 2 or self.n_fft % 2 or self.n_fft < 2 * self.frame_hop:
            raise ArgumentError(
                f"n_fft: got {self.n_fft} with frame_hop {self.frame_hop}, expected even numbers and "
                "n_fft at least twice frame_hop"
            )
        if self.hop_length > 10 * LARGEST:
            raise ArgumentError(f"strides: give a hop of {self.hop_length} samples, expected less")
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

    @property
    def hop_factors(self) -> list[int]:
        """Factors of `frame_hop` by which the transposed decoder goes from windows to samples."""
        left, found = self.frame_hop, []
        while left > 1:
            found.append(next((n for n in range(8, 1, -1) if left % n == 0), left))
            left //= found[-1]
        return found


def _wholes(what: str, values: Any) -> list[int]:
    return [as_whole(what, value, low=1, high=1024) for value in as_list(what, values, least=1)]
