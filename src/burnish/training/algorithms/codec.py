"""Audio tokenizers: a waveform to latents and back (arXiv 2606.06357).

What a step reads follows from the seed and the step: every epoch has another order, and where a crop
begins is drawn. So do the bottleneck's random numbers, which are drawn for the whole batch before it is
cut. With `adversarial` a discriminator is trained beside the tokenizer, in the same updates.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.errors import ArgumentError, UserError
from burnish.lm.new_model import NEW
from burnish.models.audio_tokenizer.spectral import (
    SpectralDiscriminator,
    adversarial_terms,
    hinge_loss,
    reconstruction_terms,
    weighted,
)
from burnish.seeds import derive
from burnish.tasks.sounds import SoundCorpus
from burnish.training.algorithm import (
    Algorithm,
    HeldOutScores,
    Loss,
    Preparation,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.events import Event, Prepared
from burnish.training.forecast import Workload, given_rows
from burnish.training.guards import check_rows
from burnish.training.packed_text import shuffled, spread_evenly
from burnish.training.packing import to_device
from burnish.training.sound_data import (
    DISTANCE,
    Sounds,
    check_sources,
    open_train_and_held_out,
    reconstructed,
    stored_samples,
)
from burnish.training.trainable import OtherModel, language_model_faults

if TYPE_CHECKING:
    from burnish.config.schema import CodecTrain, Config
    from burnish.models.audio_tokenizer import AudioTokenizerModel
    from burnish.training.data import Data

WINDOWS_S = (0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
JUDGED_S = (0.016, 0.064)
"""Of the spectra that the discriminator sees."""
LOOKED_AT = 16
PERTURBATIONS = (0.3, 0.6)
"""Noise on held-out latents, in standard deviations of each channel."""


class Crops(NamedTuple):
    step: int
    samples_Bn: NDArray[np.float32]
    """0 in padding."""
    lengths_B: NDArray[np.int64]
    names: Sequence[str]


class CodecMicro(NamedTuple):
    samples_Bn: Tensor
    lengths_B: Tensor
    alpha_B: Tensor | None
    noise_BTD: Tensor | None
    names: Sequence[str]
    share: float
    is_judged: bool
    """The adversarial phase has begun."""
    is_padded: bool


class CodecAlgorithm(Algorithm[Crops, CodecMicro]):
    samples_answers: ClassVar[bool] = False
    trains_text: ClassVar[bool] = False

    def __init__(self, setup: Setup, settings: CodecTrain) -> None:
        super().__init__(setup, settings)
        self.settings = settings
        self.model = cast("AudioTokenizerModel", setup.trainable.module)
        self.config = self.model.config
        self.windows = settings.windows or default_windows(self.config.sampling_rate, WINDOWS_S)
        self.judge: SpectralDiscriminator | None = None
        if (adversarial := settings.adversarial) is not None:
            judged = adversarial.windows or default_windows(self.config.sampling_rate, JUDGED_S)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(setup.seeds.for_("discriminator"))
                judge = SpectralDiscriminator(judged, adversarial.channels)
            self.judge = judge.to(setup.trainable.device)

    @classmethod
    def faults(cls, config: Config, settings: CodecTrain, data: Data) -> Iterator[str]:
        from burnish.models.audio_tokenizer import AudioTokenizerConfig

        yield from language_model_faults(config, "an audio tokenizer")
        if config.model.path == NEW:
            try:
                AudioTokenizerConfig(**msgspec.to_builtins(settings.sizes))
            except ArgumentError as error:
                raise UserError(f"train.sizes.{error}") from None
        column, root = settings.column, data.root
        data.digests += check_sources(settings, lambda one: SoundCorpus(one, 1000, column, root))

    @classmethod
    def open_model(cls, path: Path, dtype: torch.dtype, device: torch.device) -> OtherModel:
        from burnish.models.audio_tokenizer import open_tokenizer

        module = open_tokenizer(path).to(device=device, dtype=dtype)
        c = module.config
        layers = 4 * c.hidden_size * (1 + 5 * len(c.residual_dilations))
        spectra = c.hop_length * len(WINDOWS_S) * 4 * 8
        kept = 4 * (c.frame_stride * (4 * (c.n_fft + 2) + layers) + spectra)
        return OtherModel(module, path, str(path), kept)

    def prepare(self) -> Iterator[Preparation]:
        if line := self._resampling():
            yield Preparation("reading the rates of the sounds", lambda: Prepared("rate", line))
        yield Preparation("decoding the sounds", self._prepare)

    def _resampling(self) -> str:
        """What the first sound files lose at the model's rate."""
        rates = self._corpus(self.settings.sources).rates(LOOKED_AT)
        own, highest = self.config.sampling_rate, max(rates, default=0)
        if highest <= own:
            return ""
        most = "up to " if len(rates) > 1 else ""
        return (
            f"sounds of {most}{highest:,} Hz are resampled to {own:,} Hz: nothing above {own // 2:,} Hz "
            "is learned"
        )

    def _prepare(self) -> Event:
        sounds = self.sounds
        if not sounds.train.places:
            raise UserError(
                f"{self._corpus(self.settings.sources).name}: all {len(sounds.held_out.places)} sounds "
                "are held out. Lower train.held_out, or add sounds."
            )
        epochs = self.setup.steps * self.settings.batch / self._crops[-1]
        note = "" if sounds.held_out.places else "; nothing is held out"
        c = self.config
        return Prepared(
            "sounds",
            f"{sounds.line()}{note}; this run reads {epochs:.3g} epochs; {c.frame_rate:g} latents of "
            f"{c.latent_size} a second, {c.bottleneck}",
        )

    def _corpus(self, sources: tuple[str, ...]) -> SoundCorpus:
        rate, root = self.config.sampling_rate, self.setup.data.root
        return SoundCorpus(sources, rate, self.settings.column, root)

    @cached_property
    def sounds(self) -> Sounds:
        return self.setup.world.in_turn(
            lambda: open_train_and_held_out(self.settings, self._corpus)
        )

    @cached_property
    def _length(self) -> int:
        frames = max(1, round(self.settings.seconds * self.config.frame_rate))
        return int(frames * self.config.hop_length)

    @cached_property
    def _crops(self) -> list[int]:
        """How many crops of an epoch come from this clip and those before it."""
        counts = (max(1, round(p.samples / self._length)) for p in self.sounds.train.places)
        return list(itertools.accumulate(counts))

    def batch(self, step: int) -> Crops:
        rows, length, clips = self.settings.batch, self._length, self.sounds.train
        samples_Bn = np.zeros((rows, length), dtype=np.float32)
        lengths, names = [], []
        for row in range(rows):
            clip, start = self._place(step * rows + row)
            crop = clips.crop(clip, start, length)
            samples_Bn[row, : len(crop)] = crop
            lengths.append(len(crop))
            names.append(f"{clips.places[clip].name} at {start / clips.rate:.2f} s")
        return Crops(step, samples_Bn, np.array(lengths, dtype=np.int64), names)

    def _place(self, index: int) -> tuple[int, int]:
        seed = self.setup.seeds.for_("sounds")
        epoch, place = divmod(index, self._crops[-1])
        at = shuffled(place, self._crops[-1], derive(seed, "epoch", epoch))
        clip = bisect.bisect_right(self._crops, at)
        room = self.sounds.train.places[clip].samples - self._length
        return clip, derive(seed, "start", index) % (room + 1) if room > 0 else 0

    def micro_batches(self, batch: Crops, tokens: int) -> Iterator[CodecMicro]:
        from burnish.models.audio_tokenizer import draw_noise

        device, settings = self.setup.trainable.device, self.settings
        mine = self.setup.world.share(range(len(batch.names)))
        frames = self._length // self.config.hop_length
        generator = torch.Generator().manual_seed(self.setup.seeds.for_("noise", batch.step))
        draws = draw_noise(self.config, len(batch.names), frames, generator)
        alpha_B, noise_BTD = draws if draws is not None else (None, None)
        adversarial = settings.adversarial
        is_judged = adversarial is not None and batch.step >= adversarial.after
        size = max(1, tokens // frames)
        for begin in range(0, len(mine), size):
            rows = list(mine[begin : begin + size])
            lengths = batch.lengths_B[rows]
            yield CodecMicro(
                to_device(torch.from_numpy(batch.samples_Bn[rows]), device),
                to_device(torch.from_numpy(lengths), device),
                None if alpha_B is None else to_device(alpha_B[rows], device),
                None if noise_BTD is None else to_device(noise_BTD[rows], device),
                [batch.names[row] for row in rows],
                float(lengths.sum() / max(batch.lengths_B.sum(), 1)),
                is_judged,
                bool((lengths < self._length).any()),
            )

    def loss(self, model: Any, micro: CodecMicro) -> Loss:
        sound_Bn, lengths_B = micro.samples_Bn, micro.lengths_B
        mask_Bn = torch.arange(sound_Bn.shape[1], device=sound_Bn.device) < lengths_B[:, None]
        output = model(
            sound_Bn,
            padding_mask=mask_Bn if micro.is_padded else None,
            alpha=micro.alpha_B,
            noise=micro.noise_BTD,
        )
        made_Bn = torch.where(mask_Bn, output.audio_values, 0.0)
        rate, lengths_B = self.config.sampling_rate, lengths_B.to(made_Bn)
        parts = reconstruction_terms(made_Bn, sound_Bn, lengths_B, self.windows, rate)
        total = weighted(parts, self.settings.mel_weight, self.settings.wave_weight)
        if output.kl is not None:
            parts["kl"] = output.kl
            total = total + self.settings.kl_weight * output.kl
        if micro.is_judged:
            judged, more = self._judged(sound_Bn, made_Bn)
            total = total + judged
            parts |= more
        return Loss(
            micro.share * total,
            micro.names,
            parts={name: micro.share * value.detach() for name, value in parts.items()},
            rows={"reconstruction": made_Bn.detach()},
        )

    def _judged(self, sound_Bn: Tensor, made_Bn: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What the adversarial phase adds: each side's loss moves that side alone."""
        judge, settings = self.judge, self.settings.adversarial
        assert judge is not None
        assert settings is not None
        real = judge(sound_Bn)
        own = hinge_loss(real, judge(made_Bn.detach()))
        frozen = {name: value.detach() for name, value in judge.named_parameters()}
        seen = torch.func.functional_call(judge, frozen, (made_Bn,))
        verdict, features = adversarial_terms(real, seen)
        total = own + settings.weight * verdict + settings.features * features
        return total, {"discriminator": own, "adversarial": verdict, "features": features}

    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        if self.judge is None:
            return ()
        return ((f"discriminator.{name}", p) for name, p in self.judge.named_parameters())

    def workload(self) -> Workload:
        frames = self._length // self.config.hop_length
        return given_rows(self.settings.batch, frames, length="train.seconds")

    def finish(self, step: int, batch: Crops, result: StepResult) -> StepReport:
        return StepReport(
            {
                "audio/seconds": float(batch.lengths_B.sum()) / self.config.sampling_rate,
                "audio/epoch": (step + 1) * self.settings.batch / self._crops[-1],
                "length/tokens": float(np.ceil(batch.lengths_B / self.config.hop_length).sum()),
            }
        )

    def evaluate(self, step: int) -> HeldOutScores | None:
        """Log-spectral distance of held-out clips in dB, and with noise on their latents."""
        clips, setup = self.sounds.held_out, self.setup
        chosen = spread_evenly(len(clips.places), setup.config.evaluation.prompts)
        if not chosen:
            return None
        strengths = (0.0, *PERTURBATIONS)
        distance_CS, heard = reconstructed(
            self.model, clips, chosen, strengths, setup.world, setup.trainable.device
        )
        names = [clips.places[clip].name for clip in chosen]
        check_rows("logprob", "held-out reconstructions", distance_CS, names, step)
        means = list(zip(strengths, distance_CS.mean(0).tolist(), strict=True))[1:]
        samples = []
        if setup.world.is_main:
            samples = stored_samples(step, setup.weight_version, heard, setup.store.blobs)
        return HeldOutScores(
            distance_CS[:, 0].tolist(),
            DISTANCE,
            samples,
            beside=", ".join(f"{mean:.2f} with noise of {s:g} sd" for s, mean in means),
            figures={f"noise_{s:g}": mean for s, mean in means},
        )


ALGORITHM = CodecAlgorithm


def default_windows(rate: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Window sizes of about so many seconds, powers of 2.

    >>> default_windows(8000, JUDGED_S), default_windows(16000, JUDGED_S)
    ((128, 512), (256, 1024))
    """
    return tuple(max(4, 2 ** round(math.log2(one * rate))) for one in seconds)
