"""Sounds from files and bytes: WAV, FLAC, Ogg and MP3.

A file is read in blocks of a second, mixed and resampled as it comes, so that an hour of eight
channels at 192 kHz needs no more memory than what is asked for; reading whole and reading in blocks
give the same samples. NaN, no samples at all, and a header that promises more than there is are
refused, and so is an Ogg with a damaged page, or an MP3 that is decoded only in part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, cast

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Call, Seconds, public
from burnish.errors import UserError
from burnish.media.kinds import (
    AGAIN,
    HEAD_BYTES,
    media_type_of,
    mp3_fault,
    ogg_fault,
    open_source,
    refuse_foreign,
    short_name,
    wav_fault,
)

LEAST_RATE, MOST_RATE = 1_000, 768_000
MOST_CHANNELS = 64


class SampleReader:
    """Finite samples (n,) or (n, channels) in float32, at least one; tensors are taken too."""

    words = f"numbers (n,) or (n, channels) of at most {MOST_CHANNELS} channels, at least one"

    def read(self, what: str, samples: Any, call: Call) -> Any:
        import numpy as np

        detach = getattr(samples, "detach", None)
        plain = detach().cpu() if callable(detach) else samples
        try:
            found: Any = np.asarray(plain)
            if not np.iscomplexobj(found):
                found = found.astype(np.float32, copy=False)
        except (TypeError, ValueError) as error:
            raise refused(what, samples, self.words) from error
        is_shaped = found.ndim == 1 or (found.ndim == 2 and found.shape[1] <= MOST_CHANNELS)
        if not is_shaped or not found.size or np.iscomplexobj(found):
            raise refused(what, samples, self.words)
        is_odd = ~np.isfinite(found.reshape(len(found), -1)).all(-1)
        if is_odd.any():
            place = int(np.argmax(is_odd))
            raise refused(what, f"NaN or infinity at {place}", "finite numbers")
        return found


SAMPLES = SampleReader()


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Samples = NDArray[np.float32]
    Given = Annotated[ArrayLike, SAMPLES]

Rate = Annotated[int, Meta(ge=LEAST_RATE, le=MOST_RATE)]
"""In Hz."""

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
    """(n,), float32."""
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


@public
def read_sound(source: str | Path | bytes, *, rate: Rate | None = None) -> Sound:
    """A whole sound from a file or its bytes, at `rate` (None: its own), mixed to the mean of its channels.

    Resampling is soxr's (HQ, linear phase): no delay, and
    `round(n * rate / its rate)` samples.

    >>> from burnish.media import encode_sound
    >>> read_sound(encode_sound([0.0, 0.5, -0.5, 0.0], 8000)).samples.tolist()
    [0.0, 0.5, -0.5, 0.0]
    """
    import numpy as np

    blocks: list[Samples] = []
    with _opened(source) as opened:
        info, where = opened.info, opened.where
        target = rate or info.rate
        reader = _Reader(opened)
        count = 0
        for block in at_rate(reader.blocks(), info.rate, target):
            blocks.append(block)
            count += block.size
            # What the header promises first; then what really came, for the header may lie.
            if max(info.seconds * target, count) > MOST_VALUES:
                raise UserError(
                    f"{where} has {info.seconds:,.0f} s at {target} Hz; expected at most "
                    f"{MOST_VALUES:,} samples in memory. Read it with stream_sound"
                )
    return Sound(np.concatenate(blocks), target, reader.clipped)


@public
def stream_sound(
    source: str | Path | bytes, seconds: Seconds, *, rate: Rate | None = None
) -> Iterator[Samples]:
    """A sound in blocks of `seconds`; the last may be shorter. Joined they equal `read_sound`.

    >>> from burnish.media import encode_sound
    >>> [len(block) for block in stream_sound(encode_sound([0.0] * 2500, 1000), 1.0)]
    [1000, 1000, 500]
    """
    sound_info(source)
    return _streamed(source, seconds, rate)


def _streamed(source: str | Path | bytes, span: float, rate: int | None) -> Iterator[Samples]:
    import numpy as np

    with _opened(source) as opened:
        info = opened.info
        target = rate or info.rate
        size = max(1, round(span * target))
        waiting: list[Samples] = []
        held = 0
        for block in at_rate(_Reader(opened).blocks(), info.rate, target):
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

    def __init__(self, opened: _Opened) -> None:
        self.clipped, self._opened = 0, opened

    def blocks(self) -> Iterator[Samples]:
        import numpy as np

        _, info, where, raw, size = self._opened
        frames = 0
        # Full scale of a file of whole numbers is one step below 1.
        full = 1.0 - 2.0 ** (1 - info.bits) if info.bits else 1.0
        while True:
            size_of_block = min(info.rate, 2**22 // info.channels)
            try:
                block = self._opened.file.read(size_of_block, dtype="float64", always_2d=True)
            # The boundary to libsndfile, which meets whatever the file holds.
            except (OSError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{where} cannot be decoded after {frames / info.rate:,.2f} s: {error}. {AGAIN}"
                ) from error
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
            yield block.mean(-1).astype(np.float32)
        # MP3 may say how long it is only by estimate.
        seconds, fault = frames / info.rate, ""
        if info.media_type == "audio/mpeg":
            fault = mp3_fault(raw, size, seconds, info.seconds)
        elif frames < info.frames:
            fault = f"ends after {seconds:,.2f} s; its header says {info.seconds:,.2f} s. {AGAIN}"
        if fault or not frames:
            raise UserError(f"{where} {fault or 'has no samples; expected a sound'}")


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
        if kind == "audio/wav" and (fault := wav_fault(raw, size)):
            raise UserError(f"{where} {fault}")
        if kind == "audio/ogg" and (fault := ogg_fault(raw)):
            raise UserError(f"{where} {fault}")
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
    fault = ""
    if file.format not in _FORMATS[kind]:
        fault = f"begins like {short_name(kind)} but holds {file.format}"
    elif not LEAST_RATE <= file.samplerate <= MOST_RATE:
        fault = (
            f"says {file.samplerate:,} samples a second; expected {LEAST_RATE:,} to {MOST_RATE:,}"
        )
    elif file.channels > MOST_CHANNELS:
        fault = f"says {file.channels} channels; expected at most {MOST_CHANNELS}"
    elif file.frames <= 0:
        fault = "has no samples; expected a sound"
    elif file.frames >= _UNKNOWN:
        fault = "does not say how long it is; expected a length. Write it again to a file, not to a pipe"
    if fault:
        raise UserError(f"{where} {fault}")
    digits = file.subtype.rpartition("_")[2]
    bits = 8 if file.subtype in ("PCM_S8", "PCM_U8") else int(digits) if digits.isdigit() else 0
    is_whole = file.subtype.startswith("PCM_")
    return SoundInfo(kind, file.samplerate, file.channels, file.frames, bits if is_whole else 0)


@public
def resample(samples: Given, rate: Rate, to: Rate) -> Samples:
    """Samples (n,) or (n, channels) at another rate: `round(n * to / rate)` of them, without delay.

    >>> len(resample([0.0] * 441, 44100, 16000))
    160
    """
    import numpy as np

    return np.concatenate(list(at_rate(iter([cast("Samples", samples)]), rate, to)))


def at_rate(blocks: Iterator[Samples], rate: int, target: int) -> Iterator[Samples]:
    """Blocks at another rate; soxr keeps what it needs of one block for the next."""
    import numpy as np

    if rate == target:
        yield from blocks
        return
    stream: Any = None
    taken = given = 0
    for block in blocks:
        wide = 1 if block.ndim == 1 else block.shape[1]
        if stream is None:
            stream = _soxr().ResampleStream(rate, target, wide, dtype="float32")
        empty = block[:0]
        taken += len(block)
        out = stream.resample_chunk(np.ascontiguousarray(block))
        given += len(out)
        yield out
    if stream is not None:
        # The tail still inside; padded or cut to the length that the rates say.
        tail = stream.resample_chunk(empty, last=True)
        missing = max(1, round(taken * target / rate)) - given
        short = missing - len(tail)
        if short > 0:
            tail = np.concatenate([tail, np.zeros((short, *tail.shape[1:]), np.float32)])
        yield tail[: max(missing, 0)]


def soundfile_library() -> Any:
    """The package soundfile, or the line that says how to get it."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package without its library
        raise UserError("sounds need soundfile. Run: pip install 'burnish[audio]'") from error
    return soundfile


def _soxr() -> Any:
    try:
        import soxr
    except ImportError as error:
        raise UserError("resampling needs soxr. Run: pip install 'burnish[audio]'") from error
    return soxr
