"""Sounds from files and bytes: WAV, FLAC, Ogg and MP3.

    sound = read_sound("talk.flac", rate=16000)     # mono, float32, resampled
    for block in stream_sound("hour.wav", 10.0):    # ten seconds at a time

A file is read in blocks of a second, mixed and resampled as it comes, so that an hour of eight
channels at 192 kHz needs no more memory than what is asked for; reading whole and reading in blocks
give the same samples. NaN, no samples at all, and a header that promises more than there is are
refused, and so is an Ogg with a damaged page, or an MP3 that is decoded only in part.
`sound_writing` is the way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from burnish.arguments import as_flag, as_number
from burnish.errors import UserError
from burnish.media.kinds import (
    HEAD_BYTES,
    media_type_of,
    open_source,
    refuse_foreign,
    short_name,
)
from burnish.media.samples import (
    LEAST_RATE,
    MOST_CHANNELS,
    MOST_RATE,
    as_rate,
    at_rate,
    soundfile_library,
)
from burnish.media.sound_headers import AGAIN, check_mp3, check_ogg, check_wav

if TYPE_CHECKING:
    from burnish.media.samples import Samples

MOST_VALUES = 2**28
"""Of one sound in memory (1 GiB): 4.6 hours of mono at 16 kHz. `stream_sound` has no such limit."""

_FORMATS = {
    "audio/wav": ("WAV", "WAVEX"),
    "audio/flac": ("FLAC",),
    "audio/ogg": ("OGG",),
    "audio/mpeg": ("MP3",),
}
_UNKNOWN = 2**62
"""From here on, a number of frames is libsndfile's word for a length that the header leaves open."""
_LARGEST = 1e37
"""Of a sample: what float32 holds, with room for what resampling adds."""
_BLOCK_VALUES = 2**22
"""Most samples that are decoded at once, over all channels."""


class SoundInfo(NamedTuple):
    """What a file's header says."""

    media_type: str
    rate: int
    channels: int
    frames: int
    bits: int
    """Of a sample where the file stores whole numbers, else 0."""

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


class Sound(NamedTuple):
    """Samples between -1 and 1, and how fast they follow each other."""

    samples: Samples
    """(n,) where mono, else (n, channels); float32."""
    rate: int
    clipped: int = 0
    """How many samples of the file stand at full scale or beyond, over its channels."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


def sound_info(source: str | Path | bytes) -> SoundInfo:
    """What the header of a sound says; nothing is decoded.

    >>> from burnish.media import encode_sound
    >>> sound_info(encode_sound([0.0, 0.5, -0.5, 0.0], 8000)).frames
    4
    """
    with _opened(source) as opened:
        return opened.info


def read_sound(source: str | Path | bytes, *, rate: int | None = None, mono: bool = True) -> Sound:
    """A whole sound from a file or its bytes, at `rate` (None: its own), mixed to mono or not.

    Mono is the mean of the channels. Resampling is soxr's (HQ, linear phase): no delay, and
    `round(n * rate / its rate)` samples.

    >>> from burnish.media import encode_sound
    >>> read_sound(encode_sound([0.0, 0.5, -0.5, 0.0], 8000)).samples.tolist()
    [0.0, 0.5, -0.5, 0.0]
    """
    import numpy as np

    as_flag("mono", mono)
    blocks: list[Samples] = []
    with _opened(source) as opened:
        info, where = opened.info, opened.where
        target = as_rate("rate", rate) if rate is not None else info.rate
        wide = 1 if mono else info.channels
        reader = _Reader(opened, mono)
        count = 0
        for block in at_rate(reader.blocks(), info.rate, target):
            blocks.append(block)
            count += block.size
            # What the header promises first; then what really came, for the header may lie.
            if max(info.seconds * target * wide, count) > MOST_VALUES:
                raise UserError(
                    f"{where} has {info.seconds:,.0f} s of {wide} channel(s) at {target} Hz; "
                    f"expected at most {MOST_VALUES:,} samples in memory. Read it with stream_sound"
                )
    return Sound(np.concatenate(blocks), target, reader.clipped)


def stream_sound(
    source: str | Path | bytes, seconds: float, *, rate: int | None = None, mono: bool = True
) -> Iterator[Samples]:
    """A sound in blocks of `seconds`; the last may be shorter. Joined they equal `read_sound`.

    >>> from burnish.media import encode_sound
    >>> [len(block) for block in stream_sound(encode_sound([0.0] * 2500, 1000), 1.0)]
    [1000, 1000, 500]
    """
    span = as_number("seconds", seconds, above=0, high=3600)
    target = None if rate is None else as_rate("rate", rate)
    as_flag("mono", mono)
    sound_info(source)
    return _streamed(source, span, target, mono)


def _streamed(
    source: str | Path | bytes, span: float, rate: int | None, mono: bool
) -> Iterator[Samples]:
    import numpy as np

    with _opened(source) as opened:
        info = opened.info
        target = rate or info.rate
        size = max(1, round(span * target))
        waiting: list[Samples] = []
        held = 0
        for block in at_rate(_Reader(opened, mono).blocks(), info.rate, target):
            waiting.append(block)
            held += len(block)
            if held < size:
                continue
            joined = np.concatenate(waiting)
            whole = held - held % size
            yield from np.split(joined[:whole], range(size, whole, size))
            waiting, held = [joined[whole:]], held - whole
        if held:
            yield np.concatenate(waiting)


class _Reader:
    """A file's samples in blocks of a second, checked as they come."""

    def __init__(self, opened: _Opened, mono: bool) -> None:
        self.clipped = 0
        self._opened, self._mono = opened, mono

    def blocks(self) -> Iterator[Samples]:
        import numpy as np

        _, info, where, raw, size = self._opened
        frames = 0
        # Full scale of a file of whole numbers is one step below 1.
        full = 1.0 - 2.0 ** (1 - info.bits) if info.bits else 1.0
        while True:
            block = self._next(min(info.rate, _BLOCK_VALUES // info.channels), frames)
            if not len(block):
                break
            # NaN is not below anything.
            is_sample = np.abs(block) < _LARGEST
            if not is_sample.all():
                place = frames + int(np.argmin(is_sample.all(-1)))
                raise UserError(
                    f"{where} has NaN, infinity or a sample beyond {_LARGEST:g} at "
                    f"{place / info.rate:.3f} s; expected finite samples. Write it again from its source"
                )
            frames += len(block)
            self.clipped += int(((block >= full) | (block <= -1)).sum())
            mixed = block.mean(-1) if self._mono else block
            yield mixed.astype(np.float32)
        # MP3 may say how long it is only by estimate.
        if info.media_type == "audio/mpeg":
            check_mp3(raw, where, size, frames / info.rate, info.seconds)
        elif frames < info.frames:
            raise UserError(
                f"{where} ends after {frames / info.rate:,.2f} s; its header says "
                f"{info.seconds:,.2f} s. {AGAIN}"
            )
        if not frames:
            raise UserError(f"{where} has no samples; expected a sound")

    def _next(self, size: int, done: int) -> Any:
        try:
            return self._opened.file.read(size, dtype="float64", always_2d=True)
        # The boundary to libsndfile, which meets whatever the file holds.
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"{self._opened.where} cannot be decoded after {done / self._opened.info.rate:,.2f} s: "
                f"{error}. {AGAIN}"
            ) from error


class _Opened(NamedTuple):
    """A sound that is being read."""

    file: Any
    """libsndfile's."""
    info: SoundInfo
    where: str
    raw: BinaryIO
    """What libsndfile reads from."""
    size: int
    """Bytes."""


@contextmanager
def _opened(source: str | Path | bytes) -> Iterator[_Opened]:
    raw, where, size = open_source(source, "a sound")
    with raw:
        head = raw.read(HEAD_BYTES)
        kind = media_type_of(head)
        if kind not in _FORMATS:
            raise refuse_foreign(where, head, "a WAV, FLAC, Ogg or MP3 sound")
        if kind == "audio/wav":
            check_wav(raw, where, size)
        elif kind == "audio/ogg":
            check_ogg(raw, where)
        raw.seek(0)
        library = soundfile_library()
        try:
            # By its contents alone: a file object has no ending that could say "raw".
            file = library.SoundFile(raw)
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            said = str(error).rpartition(": ")[2]
            raise UserError(f"{where} is no {short_name(kind)} that can be read: {said}") from error
        with file:
            yield _Opened(file, _info_of(file, kind, where), where, raw, size)


def _info_of(file: Any, kind: str, where: str) -> SoundInfo:
    if file.format not in _FORMATS[kind]:
        raise UserError(f"{where} begins like {short_name(kind)} but holds {file.format}")
    if not LEAST_RATE <= file.samplerate <= MOST_RATE:
        raise UserError(
            f"{where} says {file.samplerate:,} samples a second; expected {LEAST_RATE:,} to "
            f"{MOST_RATE:,}. Its header is wrong"
        )
    if file.channels > MOST_CHANNELS:
        raise UserError(f"{where} says {file.channels} channels; expected at most {MOST_CHANNELS}")
    if file.frames <= 0:
        raise UserError(f"{where} has no samples; expected a sound")
    if file.frames >= _UNKNOWN:
        raise UserError(
            f"{where} does not say how long it is; expected a length in its header. Write it again to "
            "a file, not to a pipe"
        )
    digits = file.subtype.rpartition("_")[2]
    bits = 8 if file.subtype in ("PCM_S8", "PCM_U8") else int(digits) if digits.isdigit() else 0
    is_whole = file.subtype.startswith("PCM_")
    return SoundInfo(kind, file.samplerate, file.channels, file.frames, bits if is_whole else 0)
