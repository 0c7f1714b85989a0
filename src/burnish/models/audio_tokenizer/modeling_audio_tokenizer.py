"""A convolutional autoencoder of audio with five bottlenecks, in the Hugging Face convention.

    samples (B, n) -> windows -> log magnitudes (B, F, K) -> encoder -> latents (B, T, D)
    -> bottleneck -> decoder -> spectrum -> samples

The encoder reads magnitudes because latents of this rate do not carry phases. First weights are normal
with standard deviation 0.6 / sqrt(inputs), a third of that in the last layers of residual units and of the
decoder. Convolutions over time can run in chunks: what they saw of the past, `State`, is all a stream keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from msgspec import Meta
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForAudioTokenization,
    PreTrainedModel,
    initialization as init,
)
from transformers.utils import ModelOutput

from burnish.arguments import refused
from burnish.boundary import (
    SOME,
    Count,
    NonNegative,
    Positive,
    PositiveInt,
    PositiveShare,
    public_method,
)
from burnish.errors import ArgumentError
from burnish.models.audio_tokenizer.objective import normalise_frames
from burnish.models.audio_tokenizer.spectral import spectrum, waveform
from burnish.models.folders import Size, new_own, open_own, read_settings
from burnish.seeds import digest
from burnish.tensors import as_mask, check_shape

LARGEST_INPUT = 1e6
"""Larger samples are no sound and larger latents no output of an encoder; far beyond, squares overflow."""

if TYPE_CHECKING:
    from jaxtyping import Float

    Sounds = Annotated[
        Float[Tensor, "B C n"] | Float[Tensor, "B n"] | Float[Tensor, " n"],
        SOME,
        Meta(ge=-LARGEST_INPUT, le=LARGEST_INPUT),
    ]
    Latents = Annotated[
        Float[Tensor, "B T D"] | Float[Tensor, "T D"], Meta(ge=-LARGEST_INPUT, le=LARGEST_INPUT)
    ]

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


class Last(Conv):
    """The last layer of a residual unit or of the decoder; begins small."""


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
        scale = torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
        return x * scale * self.weight[:, None]


class Residual(nn.Module):
    """x + f(x), f being a convolution of each channel over time, a norm, and two layers around a GELU."""

    def __init__(self, size: int, kernel: int, dilation: int, *, causal: bool) -> None:
        super().__init__()
        self.over_time = Conv(size, size, kernel, dilation=dilation, groups=size, causal=causal)
        self.norm = ChannelNorm(size)
        self.widen = Conv(size, 3 * size, 1, causal=causal)
        self.narrow = Last(3 * size, size, 1, causal=causal)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
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
            if mask_BL is not None:
                mask_BT = mask_BL.repeat_interleave(x.shape[-1] // mask_BL.shape[1], dim=1)
                x = torch.where(mask_BT[:, None], x, 0.0)
            x = link(x, state)
        return x


@dataclass
class AudioTokenizerOutput(ModelOutput):  # type: ignore[misc]
    """What `forward` gives; of `encode` latents and their mask."""

    audio_values: Tensor | None = None
    """Reconstruction (B, n), as long as the input."""
    latents: Tensor | None = None
    """(B, T, D), behind the bottleneck and without noise; 0 in padding."""
    latent_mask: Tensor | None = None
    """bool (B, T): False in padding."""
    kl: Tensor | None = None
    """Of the kl bottleneck: mean over valid frames and channels of KL to N(0, 1), in nats."""


class Draws(NamedTuple):
    """Random numbers of one forward pass."""

    alpha: Tensor | None
    """Strength of the noise of each sequence, (B,); None for kl, whose encoder says it."""
    noise: Tensor
    """N(0, 1), (B, T, D)."""


def draw_noise(
    config: AudioTokenizerConfig, rows: int, frames: int, generator: torch.Generator | None = None
) -> Draws | None:
    """What the bottleneck draws in training; None where it draws nothing. On the generator's device."""
    if config.bottleneck in ("plain", "norm"):
        return None
    device = generator.device if generator is not None else torch.device("cpu")
    alpha = None
    if config.bottleneck == "norm+noise":
        alpha = torch.rand(rows, generator=generator, device=device) * config.noise_gamma
    elif config.bottleneck == "sigma":
        alpha = torch.randn(rows, generator=generator, device=device) * config.sigma_std
    shape = (rows, frames, config.latent_size)
    return Draws(alpha, torch.randn(shape, generator=generator, device=device))


class AudioTokenizerModel(PreTrainedModel):  # type: ignore[misc]
    """Samples to latents and back.

    >>> model = new_tokenizer(hidden_size=16, latent_size=4)
    >>> latents = model.encode(torch.zeros(1, 1000)).latents
    >>> tuple(latents.shape), tuple(model.decode(latents, num_samples=1000).shape)
    ((1, 4, 4), (1, 1000))
    """

    config_class = AudioTokenizerConfig
    base_model_prefix = "audio_tokenizer"
    main_input_name = "input_values"
    _no_split_modules: ClassVar[list[str]] = ["Residual"]

    def __init__(self, config: AudioTokenizerConfig) -> None:
        super().__init__(config)
        width, bins = config.hidden_size, config.n_fft // 2 + 1
        outputs = config.latent_size * (2 if config.bottleneck == "kl" else 1)
        read = bins if config.features == "magnitude" else 2 * bins
        self.encoder = Chain([self._conv(read, width), *self._residuals(width)])
        for stride in config.strides:
            down = Conv(width, width, 2 * stride, stride=stride, causal=config.causal)
            self.encoder.extend([ChannelNorm(width), down, *self._residuals(width)])
        self.encoder.extend([ChannelNorm(width), self._conv(width, outputs, 1)])
        self.decoder = Chain([self._conv(config.latent_size, width), *self._residuals(width)])
        for stride in reversed(config.strides):
            up = Upsample(width, width, stride, causal=config.causal)
            self.decoder.extend([ChannelNorm(width), up, *self._residuals(width)])
        last = Last(width, 2 * bins, 1, causal=config.causal)
        self.decoder.extend([ChannelNorm(width), last])
        self.post_init()

    def _conv(self, inputs: int, outputs: int, kernel: int | None = None) -> Conv:
        return Conv(inputs, outputs, kernel or self.config.kernel_size, causal=self.config.causal)

    def _residuals(self, size: int) -> list[Residual]:
        kernel, causal = self.config.kernel_size, self.config.causal
        dilations = self.config.residual_dilations
        return [Residual(size, kernel, dilation, causal=causal) for dilation in dilations]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Called for every module; what was loaded from a file is left as it is."""
        if isinstance(module, Conv | Upsample):
            taps = 2 if isinstance(module, Upsample) else module.kernel_size[0]
            std = 0.6 * (module.in_channels // module.groups * taps) ** -0.5
            std *= 1 / 3 if isinstance(module, Last) else 1
            init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)
            init.zeros_(module.bias)
        elif isinstance(module, ChannelNorm):
            init.ones_(module.weight)

    def forward(
        self,
        input_values: Tensor,
        padding_mask: Tensor | None = None,
        alpha: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_dict: bool | None = None,
    ) -> AudioTokenizerOutput | tuple[Any, ...]:
        """Reconstruct samples (B, n), (B, C, n) or (n,).

        In training the bottleneck's random numbers are drawn from `generator` unless they are given;
        in evaluation nothing is drawn. Given `alpha` (B,) and `noise` (B, T, D) are added to the
        latents of any bottleneck, which shows how much of it the decoder stands. Values are not looked
        at, for the sake of speed; `encode` and `decode` do.
        """
        samples_Bn = as_rows(input_values)
        lengths_B = _lengths(padding_mask, samples_Bn)
        latents, logvar, mask_BT = self._coded(samples_Bn, lengths_B)
        if noise is None and self.training:
            draws = draw_noise(self.config, len(latents), latents.shape[1], generator)
            alpha, noise = draws if draws is not None else (None, None)
        noised = latents
        if noise is not None:
            check_shape(noise, "noise", tuple(latents.shape))
            strength = latents.new_ones(1) if logvar is None else (0.5 * logvar).exp()
            if alpha is not None:
                check_shape(alpha, "alpha", (), (len(latents),))
                strength = alpha.to(latents).reshape(-1, 1, 1)
            noised = latents + strength * noise.to(latents)
        kl = None
        if logvar is not None:
            mean, wide = latents.float(), logvar.float()
            each_BT = 0.5 * (mean.square() + wide.exp() - 1 - wide).mean(-1)
            kl = torch.where(mask_BT, each_BT, 0.0).sum() / mask_BT.sum().clamp(min=1)
        made = self._synthesise(noised, mask_BT if padding_mask is not None else None)
        output = AudioTokenizerOutput(
            audio_values=made[:, : samples_Bn.shape[1]],
            latents=latents * mask_BT[..., None],
            latent_mask=mask_BT,
            kl=kl,
        )
        return output.to_tuple() if return_dict is False else output

    @public_method
    def encode(
        self, input_values: Sounds, padding_mask: Tensor | None = None
    ) -> AudioTokenizerOutput:
        """Latents of samples (B, n), (B, C, n) or (n,): one for each `hop_length` begun.

        Channels are averaged. `padding_mask` (B, n) is 1 where there is sound; padding is at the end.
        """
        samples_Bn = as_rows(input_values)
        latents, _, mask_BT = self._coded(samples_Bn, _lengths(padding_mask, samples_Bn))
        return AudioTokenizerOutput(latents=latents * mask_BT[..., None], latent_mask=mask_BT)

    @public_method
    def decode(
        self,
        latents: Annotated[Latents, SOME],
        num_samples: Count | None = None,
        renormalise: bool = False,
    ) -> Tensor:
        """Samples (B, T hop_length) of latents (B, T, D) or (T, D); the first `num_samples` if given.

        `renormalise` brings each frame back to mean 0 and standard deviation 1 where the bottleneck
        has that: for latents that a generator made.
        """
        return self._synthesise(self.prepared(latents, renormalise))[:, :num_samples]

    def fingerprint(self) -> str:
        """Of the weights in half precision (float16): a copy saved in that or in float32 has the same."""
        parts: list[str | bytes] = []
        for name, weight in sorted(self.state_dict().items()):
            parts += [name, weight.detach().to("cpu", torch.float16).numpy().tobytes()]
        return digest(*parts)

    def prepared(self, latents: Tensor, renormalise: bool) -> Tensor:
        """Latents as the decoder takes them; a batch axis is added to (T, D)."""
        check_shape(latents, "latents", (*latents.shape[:-1], self.config.latent_size))
        latents_BTD = latents if latents.ndim == 3 else latents[None]
        if renormalise and self.config.is_normalised:
            latents_BTD = normalise_frames(latents_BTD.float(), self.config.norm_eps)
        return latents_BTD.to(self.device, self.dtype)

    def code_windows(
        self, padded_BN: Tensor, state: State | None = None, mask_BT: Tensor | None = None
    ) -> Tensor:
        """Output of the encoder (B, T, X) for a signal with its edges."""
        config = self.config
        frames_BKF = spectrum(padded_BN, config.n_fft, config.frame_hop)
        power_BKF = frames_BKF.real.square() + frames_BKF.imag.square() + 1e-8
        if config.features == "magnitude":
            parts = 0.15 * power_BKF.log() + 1  # about -2 in silence, 1 in loud speech
        else:
            scale_BKF = power_BKF ** ((config.compression - 1) / 2)
            parts = torch.cat((frames_BKF.real * scale_BKF, frames_BKF.imag * scale_BKF), dim=-1)
        inputs = parts.transpose(1, 2).to(self.dtype)
        # Convolutions that look ahead alone would see the padding.
        found: Tensor = self.encoder(inputs, state, None if config.causal else mask_BT)
        return found.transpose(1, 2)

    def decoded(
        self, latents_BTD: Tensor, state: State | None = None, mask_BT: Tensor | None = None
    ) -> Tensor:
        """What the decoder's network gives: complex windows (B, K, F)."""
        inputs = latents_BTD.transpose(1, 2)
        found: Tensor = self.decoder(inputs, state, None if self.config.causal else mask_BT).float()
        real, imaginary = found.transpose(1, 2).chunk(2, dim=-1)
        # Those of the lowest and the highest frequency have no meaning.
        imaginary = F.pad(imaginary[..., 1:-1], (1, 1))
        power = real.square() + imaginary.square()
        scale = (power + 1e-12) ** ((1 / self.config.compression - 1) / 2)
        return torch.complex(real * scale, imaginary * scale)

    def _coded(self, samples_Bn: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """As `split` has it, and the mask (B, T) of what is no padding."""
        config = self.config
        frames = -(-samples_Bn.shape[1] // config.hop_length)
        counts_B = -(-lengths_B // config.hop_length)
        mask_BT = torch.arange(frames, device=lengths_B.device) < counts_B[:, None]
        mask_BT = mask_BT.to(self.device)
        places_n = torch.arange(samples_Bn.shape[1], device=samples_Bn.device)
        heard_Bn = torch.where(places_n < lengths_B[:, None], samples_Bn, 0.0)
        missing = -samples_Bn.shape[1] % config.hop_length
        padded_BN = F.pad(heard_Bn.to(self.device), (config.edge, missing + config.edge))
        return *self.split(self.code_windows(padded_BN, mask_BT=mask_BT)), mask_BT

    def split(self, code_BTX: Tensor) -> tuple[Tensor, Tensor | None]:
        """Latents without noise, and their log-variance where the bottleneck has one."""
        if self.config.bottleneck == "kl":
            mean_BTD, logvar_BTD = code_BTX.chunk(2, dim=-1)
            return mean_BTD, logvar_BTD.clamp(-30.0, 20.0)
        if self.config.is_normalised:
            normal_BTD = normalise_frames(code_BTX.float(), self.config.norm_eps)
            return normal_BTD.to(code_BTX.dtype), None
        return code_BTX, None

    def _synthesise(self, latents_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        found = self.decoded(latents_BTD, mask_BT=mask_BT)
        mask_BK = None
        if mask_BT is not None:  # a padded row ends as it does alone
            mask_BK = mask_BT.repeat_interleave(found.shape[1] // mask_BT.shape[1], dim=1)
        return waveform(found, self.config.n_fft, self.config.frame_hop, mask_BK)


def new_tokenizer(
    folder: str | Path | None = None, *, seed: int = 0, **sizes: Any
) -> AudioTokenizerModel:
    """A tokenizer with random weights; written to `folder` too, where there is one.

    `sizes` are the settings of `AudioTokenizerConfig`. The same seed gives the same weights.

    >>> new_tokenizer(hidden_size=16, latent_size=4, bottleneck="kl").config.frame_rate
    25.0
    """
    return new_own(AudioTokenizerModel, sizes, folder, seed)


def open_tokenizer(folder: str | Path) -> AudioTokenizerModel:
    """The tokenizer in a folder that `new_tokenizer`, `save_pretrained` or a training wrote.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = new_tokenizer(folder, hidden_size=16, latent_size=4)
    >>> open_tokenizer(folder).config.latent_size
    4
    """
    return open_own(
        AudioTokenizerModel, folder, "an audio tokenizer, as burnish train codec writes it"
    )


def as_rows(samples: Tensor) -> Tensor:
    """Samples as float32 (B, n); channels of (B, C, n) are averaged."""
    samples = samples.float()
    if samples.ndim == 1:
        return samples[None]
    return samples if samples.ndim == 2 else samples.mean(1)


def _lengths(mask: Tensor | None, samples_Bn: Tensor) -> Tensor:
    if mask is None:
        return torch.full((len(samples_Bn),), samples_Bn.shape[1], device=samples_Bn.device)
    return ends_padded(mask, "padding_mask", samples_Bn).sum(1)


def ends_padded(mask: Tensor, what: str, of_BTX: Tensor) -> Tensor:
    """A mask (B, T) of rows whose padding is at their end; any other is refused."""
    mask_BT = as_mask(mask, what, tuple(of_BTX.shape[:2])).to(of_BTX.device)
    if (mask_BT[:, 1:] & ~mask_BT[:, :-1]).any():
        raise refused(what, mask, "padding at the end of a row alone")
    return mask_BT


AutoConfig.register(AudioTokenizerConfig.model_type, AudioTokenizerConfig, exist_ok=True)
AutoModel.register(AudioTokenizerConfig, AudioTokenizerModel, exist_ok=True)
AutoModelForAudioTokenization.register(AudioTokenizerConfig, AudioTokenizerModel, exist_ok=True)
