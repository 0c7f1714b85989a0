"""A text-to-speech generator on the latents of a trained audio tokenizer (arXiv 2606.06357, 2.3).

Rows are recordings with their texts and voices. The frozen tokenizer encodes each recording once, without
noise. A step's rows follow from the seed and the step, and so do the random numbers of the loss, which are
drawn for the whole batch before it is cut; each pass counts by its patches. A checkpoint holds the
generator, and the tokenizer beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.errors import UserError
from burnish.records import Reward
from burnish.seeds import derive
from burnish.speech.engines import GUIDANCE, STEPS
from burnish.texts import counted
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
    Clips,
    Latents,
    SoundSample,
    SpeechData,
    check_sources,
    find_tokenizer,
    open_latents,
    open_speech,
    speech_corpus,
    stored_samples,
    tokenizer_digest,
)
from burnish.training.trainable import OtherModel, language_model_faults

if TYPE_CHECKING:
    from burnish.config.schema import Config, SpeechTrain
    from burnish.models.audio_tokenizer import AudioGeneratorModel, AudioTokenizerModel
    from burnish.models.audio_tokenizer.generator import FlowDraws, GeneratorLoss
    from burnish.training.data import Data

MEANING = "loss of the recording's latents, negative: higher is better"
SLOWEST = 2
"""A spoken sentence is cut at so many times the patches of its recording."""


class Utterances(NamedTuple):
    """The rows of a step on the host, short ones first: a pass of them has little padding."""

    step: int
    names: Sequence[str]
    ids: Sequence[Sequence[int]]
    latents: Sequence[NDArray[np.float32]]
    """(T, D) each: whole patches."""
    voices: Sequence[int]


class SpeechMicro(NamedTuple):
    text_BL: Tensor
    latents_BTD: Tensor
    """0 in padding."""
    mask_BT: Tensor
    draws: FlowDraws
    voices_B: Tensor | None
    names: Sequence[str]
    share: float


class SpeechAlgorithm(Algorithm[Utterances, SpeechMicro]):
    samples_answers: ClassVar[bool] = False
    trains_text: ClassVar[bool] = False

    def __init__(self, setup: Setup, settings: SpeechTrain) -> None:
        from burnish.models.audio_tokenizer.generator import check_pair

        super().__init__(setup, settings)
        self.settings = settings
        self.model = cast("AudioGeneratorModel", setup.trainable.module)
        self.config = self.model.config
        check_pair("train.tokenizer", self.tokenizer, self.model)
        known, found = list(self.config.voices), self.data.voices
        if bool(known) != bool(found) or set(found) - set(known):
            raise UserError(
                f"train.data: has the voices {', '.join(found) or 'none'}; model.path knows "
                f"{', '.join(known) or 'none'}; expected no others. Start from model.path=new"
            )

    @classmethod
    def faults(cls, config: Config, settings: SpeechTrain, data: Data) -> Iterator[str]:
        from burnish.models.audio_tokenizer import open_tokenizer

        yield from language_model_faults(config, "a speech generator")
        try:
            open_tokenizer(find_tokenizer(settings))
        except UserError as error:
            raise UserError(f"train.tokenizer: {error}") from None
        root = data.root
        data.digests += check_sources(settings, lambda one: speech_corpus(settings, one, root))

    @classmethod
    def open_model(cls, path: Path, dtype: torch.dtype, device: torch.device) -> OtherModel:
        from burnish.models.audio_tokenizer import open_generator

        module = open_generator(path).to(device=device, dtype=dtype)
        c = module.config
        kept = 4 * (16 * c.num_hidden_layers * c.hidden_size + 4 * 12 * c.head_layers * c.head_size)
        return OtherModel(module, path, str(path), kept)

    @cached_property
    def tokenizer(self) -> AudioTokenizerModel:
        """Frozen, in single precision."""
        from burnish.models.audio_tokenizer import open_tokenizer

        found = open_tokenizer(find_tokenizer(self.settings))
        found.float().requires_grad_(False).to(self.setup.trainable.device)
        return found

    @cached_property
    def data(self) -> SpeechData:
        return self.setup.world.in_turn(
            lambda: open_speech(self.settings, self.tokenizer.config, self.config.patch)
        )

    @cached_property
    def latents(self) -> tuple[Latents, Latents]:
        sounds, key = self.data.sounds, tokenizer_digest(find_tokenizer(self.settings))
        return self.setup.world.in_turn(
            lambda: (
                open_latents(sounds.train, self.tokenizer, key),
                open_latents(sounds.held_out, self.tokenizer, key),
            )
        )

    def prepare(self) -> Iterator[Preparation]:
        yield Preparation("encoding the sounds", self._prepare)

    def _prepare(self) -> Event:
        _, held = self.latents
        sounds, found = self.data.sounds, len(self.data.voices)
        voices = (
            counted(found, "voice") if found else f"one voice: no column '{self.settings.voice}'"
        )
        epochs = self.setup.steps * self.settings.batch / len(sounds.train.places)
        said = [
            sounds.line(),
            f"{voices}, {self.data.characters_a_patch:.2f} characters a patch",
            f"this run reads {epochs:.3g} epochs",
            "" if len(held.starts) > 1 else "nothing is held out",
            sounds.note,
        ]
        return Prepared("recordings", "; ".join(filter(None, said)))

    def batch(self, step: int) -> Utterances:
        size, places = self.settings.batch, self.data.sounds.train.places
        seed, count = self.setup.seeds.for_("rows"), len(places)
        chosen = []
        for index in range(step * size, (step + 1) * size):
            epoch, place = divmod(index, count)
            chosen.append(shuffled(place, count, derive(seed, "epoch", epoch)))
        chosen.sort(key=lambda clip: (places[clip].samples, clip))
        return self._rows(step, self.data.sounds.train, self.latents[0], chosen)

    def _rows(self, step: int, clips: Clips, latents: Latents, chosen: Sequence[int]) -> Utterances:
        places = [clips.places[clip] for clip in chosen]
        whole = [self.data.patches(place) * self.config.patch for place in places]
        return Utterances(
            step,
            [place.name for place in places],
            [self.model.ids(place.text) for place in places],
            [latents.clip(clip)[:frames] for clip, frames in zip(chosen, whole, strict=True)],
            [self.model.voice_id(place.voice) if place.voice else 0 for place in places],
        )

    def micro_batches(self, batch: Utterances, tokens: int) -> Iterator[SpeechMicro]:
        draws = self._draws(batch, self.setup.seeds.for_("noise", batch.step))
        total = sum(map(len, batch.latents))
        mine = self.setup.world.share(range(len(batch.names)))
        for rows in self._passes(batch, mine, tokens):
            share = sum(len(batch.latents[row]) for row in rows) / total
            yield self._micro(batch, rows, draws, share)

    def _draws(self, batch: Utterances, seed: int) -> FlowDraws:
        """For all rows, on the host: the same on every device, however the batch is cut."""
        from burnish.models.audio_tokenizer import draw_flow

        c, settings = self.config, self.settings
        return draw_flow(
            len(batch.names),
            max(map(len, batch.latents)) // c.patch,
            c.patch * c.latent_size,
            torch.Generator().manual_seed(seed),
            times=settings.times,
            dropout=settings.dropout,
            strength=settings.noise,
        )

    def _passes(self, batch: Utterances, mine: Sequence[int], tokens: int) -> Iterator[list[int]]:
        rows: list[int] = []
        longest = 0
        for row in mine:
            length = len(batch.ids[row]) + len(batch.latents[row]) // self.config.patch
            if rows and (len(rows) + 1) * max(longest, length) > tokens:
                yield rows
                rows, longest = [], 0
            rows.append(row)
            longest = max(longest, length)
        if rows:
            yield rows

    def _micro(
        self, batch: Utterances, rows: Sequence[int], draws: FlowDraws, share: float
    ) -> SpeechMicro:
        from burnish.models.audio_tokenizer.generator import FlowDraws

        device = self.setup.trainable.device
        lengths_B = torch.tensor([len(batch.latents[row]) for row in rows])
        frames = int(lengths_B.max())
        letters = max(len(batch.ids[row]) for row in rows)
        text_BL = torch.zeros(len(rows), letters, dtype=torch.long)
        latents_BTD = torch.zeros(len(rows), frames, self.config.latent_size)
        for place, row in enumerate(rows):
            text_BL[place, : len(batch.ids[row])] = torch.tensor(batch.ids[row])
            latents_BTD[place, : len(batch.latents[row])] = torch.from_numpy(batch.latents[row])
        voices = torch.tensor([batch.voices[row] for row in rows])
        count, dtype = frames // self.config.patch, self.setup.trainable.loaded.dtype
        kept = FlowDraws(
            draws.noise[:, rows, :count].to(device, dtype),
            draws.tau[:, rows, :count].to(device, dtype),
            draws.is_dropped[rows, :count].to(device),
            draws.alpha[rows].to(device, dtype),
            draws.fed[rows, :count].to(device, dtype),
        )
        return SpeechMicro(
            to_device(text_BL, device),
            to_device(latents_BTD.to(dtype), device),
            to_device(torch.arange(frames) < lengths_B[:, None], device),
            kept,
            to_device(voices, device) if self.config.voices else None,
            [batch.names[row] for row in rows],
            share,
        )

    def loss(self, model: Any, micro: SpeechMicro) -> Loss:
        found = self._losses(model, micro)
        parts = {"patches": found.patches, "end": found.end}
        return Loss(
            micro.share * found.loss,
            micro.names,
            parts={name: micro.share * value.detach() for name, value in parts.items()},
        )

    def _losses(self, model: Any, micro: SpeechMicro) -> GeneratorLoss:
        text, latents, mask, draws, voices, *_ = micro
        found: GeneratorLoss = model.loss(text, latents, mask, draws, voices)
        return found

    def workload(self) -> Workload:
        places = self.data.sounds.train.places
        tokens = sum(len(place.text) + self.data.patches(place) for place in places)
        mean = max(1, round(tokens / len(places)))
        return given_rows(self.settings.batch, mean, length="train.longest")

    def finish(self, step: int, batch: Utterances, result: StepResult) -> StepReport:
        frames = sum(map(len, batch.latents))
        count = len(self.data.sounds.train.places)
        return StepReport(
            {
                "audio/seconds": frames / self.tokenizer.config.frame_rate,
                "audio/epoch": (step + 1) * self.settings.batch / count,
                "length/tokens": frames / self.config.patch,
            }
        )

    def write(self, folder: Path) -> None:
        from burnish.models.folders import save_own

        save_own(self.tokenizer, folder / "tokenizer")

    @torch.no_grad()
    def evaluate(self, step: int) -> HeldOutScores | None:
        """The loss of held-out rows, and some of their sentences spoken."""
        clips, setup = self.data.sounds.held_out, self.setup
        chosen = spread_evenly(len(clips.places), setup.config.evaluation.prompts)
        if not chosen:
            return None
        count, world = len(chosen), setup.world

        def scored(clip: int) -> Tensor:
            """Its loss and the two parts, (3,)."""
            row = self._rows(0, clips, self.latents[1], [clip])
            micro = self._micro(row, [0], self._draws(row, derive("held out", clip)), 1.0)
            return torch.stack(tuple(self._losses(self.model, micro))).double()

        loss_C3 = world.stacked(
            {i: scored(chosen[i]) for i in world.share(range(count))}, count
        ).cpu()
        names = [clips.places[clip].name for clip in chosen]
        check_rows("loss", "held-out loss", loss_C3, names, step)
        kept = spread_evenly(count, self.settings.spoken)
        said = world.merge({i: self._spoken(chosen[i]) for i in world.share(kept)})
        heard = []
        for i in kept if world.is_main else ():
            place, loss = clips.places[chosen[i]], float(loss_C3[i, 0])
            name = f"{place.name}, {place.voice}" if place.voice else place.name
            made = [(f"spoken: {place.text}", said[i].cpu().numpy())]
            reward = Reward("loss", -loss, reason=MEANING)
            sound_n = clips.crop(chosen[i])
            heard.append(SoundSample(name, chosen[i], clips.rate, sound_n, made, reward, "speech"))
        samples = (
            stored_samples(step, setup.weight_version, heard, setup.store.blobs) if heard else []
        )
        _, patches, end = loss_C3.mean(0).tolist()
        figures = {"patches": patches, "end": end}
        return HeldOutScores(loss_C3[:, 0].tolist(), "loss", samples, figures=figures)

    def _spoken(self, clip: int) -> Tensor:
        place = self.data.sounds.held_out.places[clip]
        text = torch.tensor([self.model.ids(place.text)], device=self.setup.trainable.device)
        latents = self.model.generate(
            text,
            torch.Generator().manual_seed(derive("spoken", clip)),
            voice=place.voice,
            most_patches=SLOWEST * self.data.patches(place),
            steps=STEPS,
            guidance=GUIDANCE,
        )
        return self.tokenizer.decode(latents.float(), renormalise=True)[0]


ALGORITHM = SpeechAlgorithm
