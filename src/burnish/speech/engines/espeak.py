"""espeak-ng behind the protocol of engines: 100 voices, pitch, range and rate, word and phoneme times.

    engine = EspeakEngine()                     # needs pip install espeakng-loader
    engine.speak(Line("Hello there.", Speaker(id="A"), 0, seed=0, voice="f2")).words

The library is loaded through ctypes and keeps a state from line to line that nothing resets, not even
its own Terminate: the same words came out with other samples after another line. So it is loaded anew
for every line (about 10 ms) under one lock, and the same line gives the same samples in any order.
Formant synthesis has no randomness; the seed changes nothing.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from pathlib import Path
from typing import Any

from burnish.errors import ModelError, UserError, did_you_mean
from burnish.models.long_speech.engine import Capabilities, Line, Spoken, Timed
from burnish.tensors import torch

RATE_WPM = 170
"""Words a minute at rate 1; espeak's own default is 175."""
OWN, OCTAVE, HIGHEST = 50, 50, 99
"""espeak's setting of the pitch: a voice's own, steps an octave, and the most; the least is 0."""
_FIXED = "Alicia .32|Andrea .23|Annie .54|anika .3|aunty -.12|belinda .17|f1 .27|f2 .32|f3 .38|f4 .26|f5 .27|grandma .46|linda .17|shelby .5|steph .15|Alex .08|Andy .2|Gene .26|Gene2 .21|Lee .2|Marco .3|Mario .39|Michael .38|Mike .36|Nguyen .44|Reed .34|Storm .41|adam .3|announcer .74|boris .3|david .31|ed .35|edward .31|grandpa .31|gustave .33|john .28|m1 .3|m2 .22|m3 .32|m4 .35|m7 .38|m8 .35|max .3|paul .29|robert .45|travis .36|croak .26|whisper 1|whisperf 1|robosoft3 .4|zac .39|caleb 1"  # fmt: skip
FIXED = {name: float(share) for name, share in (row.split() for row in _FIXED.split("|"))}
"""Share of a voice's mean pitch that the setting does not move, its melody's: fitted to the pitch by
`measure_speech` of one sentence at seven settings from 30 to 82, within 0.15 semitones but for david,
announcer, robosoft3 and zac (0.7). Voices with 1 keep their pitch."""
USUAL_FIXED = 0.31
"""Of a voice that was not measured: the median."""
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
            raise UserError(
                "engine 'espeak' needs espeak-ng: pip install espeakng-loader"
            ) from None
        self.lib = ctypes.CDLL(espeakng_loader.get_library_path())
        folder = str(espeakng_loader.get_data_path()).encode()
        self.sample_rate = self.lib.espeak_Initialize(_SYNCHRONOUS, 0, folder, _PHONEME_EVENTS)
        if self.sample_rate <= 0:
            raise ModelError(f"espeak-ng could not read its data in {folder.decode()}")
        self.pieces: list[bytes] = []
        self.events: list[tuple[int, int, int, int, str]] = []
        self.callback = _CALLBACK(self._receive)
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

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self.pieces.append(ctypes.string_at(samples, 2 * count))
        place = 0
        while events and events[place].type != _END:
            event = events[place]
            if event.type in (_WORD, _PHONEME):
                name = event.id.string.decode(errors="replace") if event.type == _PHONEME else ""
                row = (event.type, event.text_position, event.length, event.audio_position, name)
                self.events.append(row)
            place += 1
        return 0

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
        return self._spoken(text)

    def _spoken(self, text: str) -> Spoken:
        data = bytearray(b"".join(self.pieces))
        samples = torch.frombuffer(data, dtype=torch.int16) if data else torch.zeros(0)
        seconds = len(samples) / self.sample_rate
        words = [e for e in self.events if e[0] == _WORD]
        phonemes = [e for e in self.events if e[0] == _PHONEME]
        return Spoken(
            samples.double() / 32768,
            _timed([(_word_at(text, place), ms) for _, place, _, ms, _ in words], seconds),
            _timed([(name, ms) for *_, ms, name in phonemes], seconds),
        )


def _word_at(text: str, place: int) -> str:
    """The whole word: espeak's own length ends at an apostrophe."""
    word, *_ = *text[place - 1 :].split(maxsplit=1), ""
    return word.strip('.,;:!?"()')


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
    fixed = _fixed(voice)
    moved = (2 ** (semitones / 12) - fixed) / (1 - fixed) if fixed < 1 else 1.0
    if moved <= 0:
        return 0
    return max(0, min(HIGHEST, round(OWN + OCTAVE * math.log2(moved))))


def _fixed(voice: str) -> float:
    return FIXED.get(voice.rpartition("+")[2], USUAL_FIXED)


class EspeakEngine:
    """Formant synthesis by espeak-ng; a line's `voice` may be `f2`, `en+f2` or `de+m3`."""

    name = "espeak"
    capabilities = Capabilities(
        pitch=True, rate=True, range=True, words=True, phonemes=True, voices=True
    )

    def __init__(self, language: str = "en-us") -> None:
        self.language, self.version = language, f"2 {language}"
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
        fixed = _fixed(voice)
        low, high = (
            12 * math.log2(fixed + (1 - fixed) * 2 ** ((setting - OWN) / OCTAVE))
            for setting in (0, HIGHEST)
        )
        return low, high

    def speak(self, line: Line) -> Spoken:
        """The samples of a line with the times of its words and phonemes."""
        variant = line.voice
        if variant and "+" not in variant and variant not in self.voices:
            hint = did_you_mean(variant, self.voices)
            raise UserError(
                f"espeak-ng has no voice '{variant}'; expected f2, m3 or the like.{hint}"
            )
        voice = (
            variant
            if "+" in variant
            else f"{self.language}+{variant}"
            if variant
            else self.language
        )
        manner = line.manner
        with _LOCK, _Library() as library:
            return library.speak(
                line.text,
                voice,
                rate=max(80, min(450, round(RATE_WPM * manner.rate))),
                pitch=pitch_setting(variant, manner.pitch_st),
                range_=max(0, min(99, round(50 * manner.range))),
                seed=line.seed,
            )
