"""Sounds from files and bytes, and back: WAV, FLAC, Ogg and MP3.

    sound = read_sound("talk.flac", rate=16000)     # mono, float32, resampled
    for block in stream_sound("hour.wav", 10.0):    # ten seconds at a time
    write_sound("out.wav", sound.samples, sound.rate)

A file is read in blocks of a second, mixed and resampled as it comes, so that an hour of eight
channels at 192 kHz needs no more memory than what is asked for; reading whole and reading in blocks
give the same samples. NaN, no samples at all, and a header that promises more than there is are
refused. WAV is written without a time of day: the same samples give the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from burnish.arguments import as_flag, as_number, as_path, as_whole, as_word, refused
from burnish.errors import ArgumentError, UserError
from burnish.media.kinds import (
    HEAD_BYTES,
    media_type_of,
    open_source,
    refuse_foreign,
    short_name,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Samples = NDArray[np.float32]

MOST_VALUES = 2**28
"""Of one sound in memory (1 GiB): 4.6 hours of mono at 16 kHz. `stream_sound` has no such limit."""
LEAST_RATE, MOST_RATE = 1_000, 768_000
MOST_CHANNELS = 64

_FORMATS = {
    "audio/wav": ("WAV", "WAVEX"),
    "audio/flac": ("FLAC",),
    "audio/ogg": ("OGG",),
    "audio/mpeg": ("MP3",),
}
_STREAMED = (0xFFFFFFFF, 0x7FFFFFFF)
"""Sizes that a program writes into a WAV header when it cannot go back: read to the end."""

_UNKNOWN = 2**62
"""From here on, a number of frames is libsndfile's word for a length that the header leaves open."""
_OGG_PAGE = 65_307
"""Most bytes of a page of Ogg."""
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

    >>> sound_info(encode_sound([0.0, 0.5, -0.5, 0.0], 8000)).frames
    4
    """
    with _opened(source) as (_, info, _):
        return info


def read_sound(source: str | Path | bytes, *, rate: int | None = None, mono: bool = True) -> Sound:
    """A whole sound from a file or its bytes, at `rate` (None: its own), mixed to mono or not.

    Mono is the mean of the channels. Resampling is soxr's (HQ, linear phase): no delay, and
    `round(n * rate / its rate)` samples.

    >>> read_sound(encode_sound([0.0, 0.5, -0.5, 0.0], 8000)).samples.tolist()
    [0.0, 0.5, -0.5, 0.0]
    """
    import numpy as np

    as_flag("mono", mono)
    blocks: list[Samples] = []
    with _opened(source) as (file, info, where):
        target = _rate("rate", rate) if rate is not None else info.rate
        wide = 1 if mono else info.channels
        reader = _Reader(file, info, where, mono)
        count = 0
        for block in _at_rate(reader.blocks(), info.rate, target):
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

    >>> [len(block) for block in stream_sound(encode_sound([0.0] * 2500, 1000), 1.0)]
    [1000, 1000, 500]
    """
    span = as_number("seconds", seconds, above=0, high=3600)
    target = None if rate is None else _rate("rate", rate)
    as_flag("mono", mono)
    sound_info(source)
    return _streamed(source, span, target, mono)


def _streamed(
    source: str | Path | bytes, span: float, rate: int | None, mono: bool
) -> Iterator[Samples]:
    import numpy as np

    with _opened(source) as (file, info, where):
        target = rate or info.rate
        size = max(1, round(span * target))
        waiting: list[Samples] = []
        held = 0
        for block in _at_rate(_Reader(file, info, where, mono).blocks(), info.rate, target):
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


def resample(samples: ArrayLike, rate: int, to: int) -> Samples:
    """Samples (n,) or (n, channels) at another rate: `round(n * to / rate)` of them, without delay.

    >>> len(resample([0.0] * 441, 44100, 16000))
    160
    """
    import numpy as np

    found = _as_samples("samples", samples)
    blocks = _at_rate(iter([found]), _rate("rate", rate), _rate("to", to))
    return np.concatenate(list(blocks))


def encode_sound(samples: ArrayLike, rate: int, kind: str = "wav", *, bits: int = 16) -> bytes:
    """The bytes of a sound file: wav, flac or ogg. `bits` 16, 24, or 32 (float, wav only).

    Samples beyond full scale are refused unless they are written as 32-bit floats. The same samples
    give the same bytes but for ogg, whose streams have random names.

    >>> encode_sound([0.0, 0.5], 8000)[:4]
    b'RIFF'
    """
    import numpy as np

    found = _as_samples("samples", samples)
    speed = _rate("rate", rate)
    as_word("kind", kind, ("wav", "flac", "ogg"))
    if bits not in ((16, 24, 32) if kind == "wav" else (16, 24)):
        raise refused("bits", bits, "16, 24 or, in a wav, 32")
    if bits == 32:
        return _wav_bytes(found.astype("<f4").tobytes(), found, speed, bits)
    if (peak := float(np.abs(found).max())) > 1:
        raise ArgumentError(
            f"samples: the largest is {peak:.3g}, expected at most 1. Scale them down, or write a "
            "wav with bits=32"
        )
    # Not libsndfile's own rounding: it multiplies by 32767 and divides by 32768 on the way back.
    scale = 2.0 ** (bits - 1)
    whole = np.clip(np.rint(found.astype(np.float64) * scale), -scale, scale - 1)
    if kind == "wav":
        if bits == 16:
            return _wav_bytes(whole.astype("<i2").tobytes(), found, speed, bits)
        three = whole.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :3]
        return _wav_bytes(three.tobytes(), found, speed, bits)
    into = BytesIO()
    shifted = whole.astype(np.int16) if bits == 16 else (whole.astype(np.int64) * 256).astype("i4")
    subtype = "VORBIS" if kind == "ogg" else f"PCM_{bits}"
    data = found if kind == "ogg" else shifted
    try:
        _soundfile().write(into, data, speed, format=kind.upper(), subtype=subtype)
    # The boundary to libsndfile: flac takes at most 8 channels and 655,350 Hz, vorbis less.
    except (OSError, RuntimeError, ValueError) as error:
        raise ArgumentError(
            f"samples: {kind} cannot hold {_shape(found)} at {speed} Hz: {error}"
        ) from error
    return into.getvalue()


def write_sound(path: str | Path, samples: ArrayLike, rate: int, *, bits: int = 16) -> Path:
    """Write a sound; the name's ending says which kind: .wav, .flac or .ogg."""
    target = as_path("path", path, "a file that ends in .wav, .flac or .ogg")
    kind = target.suffix.lower().lstrip(".")
    if kind not in ("wav", "flac", "ogg"):
        raise refused("path", str(path), "a file that ends in .wav, .flac or .ogg")
    data = encode_sound(samples, rate, kind, bits=bits)
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


class _Reader:
    """A file's samples in blocks of a second, checked as they come."""

    def __init__(self, file: Any, info: SoundInfo, where: str, mono: bool) -> None:
        self.clipped = 0
        self._file, self._info, self._where, self._mono = file, info, where, mono

    def blocks(self) -> Iterator[Samples]:
        import numpy as np

        info, frames = self._info, 0
        # Full scale of a file of whole numbers is one step below 1.
        full = 1.0 - 2.0 ** (1 - info.bits) if info.bits else 1.0
        while True:
            block = self._next(min(info.rate, _BLOCK_VALUES // info.channels), frames)
            if not len(block):
                break
            if not np.isfinite(block).all():
                place = frames + int(np.argmin(np.isfinite(block).all(-1)))
                raise UserError(
                    f"{self._where} has NaN or infinity at {place / info.rate:.3f} s; expected "
                    "finite samples. Write it again from its source"
                )
            frames += len(block)
            self.clipped += int(((block >= full) | (block <= -1)).sum())
            mixed = block.mean(-1) if self._mono else block
            yield mixed.astype(np.float32)
        # MP3 says how long it is only by estimate.
        if frames < info.frames and info.media_type != "audio/mpeg":
            raise UserError(
                f"{self._where} ends after {frames / info.rate:,.2f} s; its header says "
                f"{info.seconds:,.2f} s. It is cut off or damaged: copy it again"
            )
        if not frames:
            raise UserError(f"{self._where} has no samples; expected a sound")

    def _next(self, size: int, done: int) -> Any:
        try:
            return self._file.read(size, dtype="float64", always_2d=True)
        # The boundary to libsndfile, which meets whatever the file holds.
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"{self._where} cannot be decoded after {done / self._info.rate:,.2f} s: {error}. "
                "It is cut off or damaged: copy it again"
            ) from error


@contextmanager
def _opened(source: str | Path | bytes) -> Iterator[tuple[Any, SoundInfo, str]]:
    raw, where, size = open_source(source, "a sound")
    with raw:
        head = raw.read(HEAD_BYTES)
        kind = media_type_of(head)
        if kind not in _FORMATS:
            raise refuse_foreign(where, head, "a WAV, FLAC, Ogg or MP3 sound")
        if kind == "audio/wav":
            _check_wav(raw, where, size)
        elif kind == "audio/ogg":
            _check_ogg(raw, where, size)
        raw.seek(0)
        library = _soundfile()
        try:
            # By its contents alone: a file object has no ending that could say "raw".
            file = library.SoundFile(raw)
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            said = str(error).rpartition(": ")[2]
            raise UserError(f"{where} is no {short_name(kind)} that can be read: {said}") from error
        with file:
            yield file, _info_of(file, kind, where), where


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


def _check_wav(raw: BinaryIO, where: str, size: int) -> None:
    """Refuse a `data` chunk that is longer than the file: libsndfile shortens it in silence."""
    place = 12
    for _ in range(1000):
        raw.seek(place)
        head = raw.read(8)
        if len(head) < 8:
            raise UserError(f"{where} has no samples: a WAV header without a data chunk")
        name, length = struct.unpack("<4sI", head)
        if name == b"data":
            there = size - place - 8
            if length > there and length not in _STREAMED:
                raise UserError(
                    f"{where} has {there:,} bytes of samples; its header says {length:,}. It is "
                    "cut off or damaged: copy it again"
                )
            return
        place += 8 + length + length % 2
    raise UserError(f"{where} has over 1,000 chunks before its samples; expected a plain WAV")


def _check_ogg(raw: BinaryIO, where: str, size: int) -> None:
    """Refuse an Ogg that ends inside a page: libsndfile leaves such a page out in silence."""
    raw.seek(max(0, size - 2 * _OGG_PAGE))
    tail = raw.read()
    page = tail[max(tail.rfind(b"OggS"), 0) :]
    lengths = page[27 : 27 + page[26]] if len(page) > 26 else b""
    if len(page) < 27 or len(page) < 27 + page[26] + sum(lengths):
        raise UserError(
            f"{where} ends inside a page of Ogg. It is cut off or damaged: copy it again"
        )


def _at_rate(blocks: Iterator[Samples], rate: int, target: int) -> Iterator[Samples]:
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
        missing = _length(taken, rate, target) - given
        short = missing - len(tail)
        if short > 0:
            tail = np.concatenate([tail, np.zeros((short, *tail.shape[1:]), np.float32)])
        yield tail[: max(missing, 0)]


def _length(count: int, rate: int, target: int) -> int:
    return max(1, round(count * target / rate))


def _as_samples(what: str, samples: ArrayLike) -> Samples:
    import numpy as np

    detach = getattr(samples, "detach", None)
    plain = detach().cpu() if callable(detach) else samples
    try:
        if np.iscomplexobj(plain):
            raise TypeError("complex numbers")
        found = np.asarray(plain, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise refused(what, samples, "numbers (n,) or (n, channels)") from error
    if found.ndim not in (1, 2) or not found.size:
        raise refused(what, samples, "numbers (n,) or (n, channels), at least one")
    if found.ndim == 2 and found.shape[1] > MOST_CHANNELS:
        raise refused(what, samples, f"(n, channels) with at most {MOST_CHANNELS} channels")
    if not np.isfinite(found).all():
        place = int(np.argmin(np.isfinite(found.reshape(len(found), -1)).all(-1)))
        raise ArgumentError(f"{what}: NaN or infinity at sample {place}, expected finite numbers")
    return found


def _rate(what: str, value: Any) -> int:
    return as_whole(what, value, low=LEAST_RATE, high=MOST_RATE)


def _shape(samples: Samples) -> str:
    wide = 1 if samples.ndim == 1 else samples.shape[1]
    return f"{len(samples):,} samples of {wide} channel(s)"


def _wav_bytes(data: bytes, samples: Samples, rate: int, bits: int) -> bytes:
    """A WAV by hand: libsndfile puts the time of day into those of floats."""
    wide = 1 if samples.ndim == 1 else samples.shape[1]
    if len(data) > 2**32 - 100:
        raise ArgumentError(f"samples: {_shape(samples)} are over 4 GiB, which a WAV cannot hold")
    frame = wide * bits // 8
    form = struct.pack("<HHIIHH", 3 if bits == 32 else 1, wide, rate, rate * frame, frame, bits)
    if bits == 32:
        form += b"\x00\x00"
    facts = struct.pack("<4sII", b"fact", 4, len(samples)) if bits == 32 else b""
    chunks = struct.pack("<4sI", b"fmt ", len(form)) + form + facts
    pad = b"\x00" * (len(data) % 2)
    chunks += struct.pack("<4sI", b"data", len(data)) + data + pad
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package without its library
        raise UserError(
            "reading sounds needs soundfile. Run: pip install 'burnish[audio]'"
        ) from error
    return soundfile


def _soxr() -> Any:
    try:
        import soxr
    except ImportError as error:
        raise UserError("resampling needs soxr. Run: pip install 'burnish[audio]'") from error
    return soxr
