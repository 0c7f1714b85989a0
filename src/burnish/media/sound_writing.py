"""Sounds to files and bytes: WAV, FLAC and Ogg, whole or block by block.

WAV is written without a time of day: the same samples give the same bytes. A file has its name only when
it is whole.
"""

from __future__ import annotations

import glob
import os
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from burnish.arguments import refused
from burnish.boundary import Call, public
from burnish.errors import ArgumentError, UserError
from burnish.media.sounds import SAMPLES, Rate, soundfile_library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Buffer

    from burnish.media.sounds import Given, Samples

Kind = Literal["wav", "flac", "ogg"]
KINDS = get_args(Kind)
MOST_OGG_RATE = 200_000
"""Libvorbis ends the process above it."""
MOST_WAV_BYTES = 2**32 - 100


@public
def encode_sound(
    samples: Given, rate: Rate, kind: Kind = "wav", *, bits: Literal[16, 32] = 16
) -> bytes:
    """The bytes of a sound file: wav, flac or ogg. `bits` 16, or 32 (float, wav only).

    Samples beyond full scale are refused unless they are written as 32-bit floats. The same samples
    give the same bytes but for ogg, whose streams have random names.

    >>> encode_sound([0.0, 0.5], 8000)[:4]
    b'RIFF'
    """
    import numpy as np

    found = cast("Samples", samples)
    _check_rate(kind, rate)
    if bits == 32 and kind != "wav":
        raise refused("bits", bits, "16 or, in a wav, 32")
    if bits == 32:
        return _wav_bytes(found.astype("<f4").tobytes(), found, rate, bits)
    if (peak := float(np.abs(found).max())) > 1:
        raise refused("samples", f"up to {peak:.3g}", "at most 1, or a wav with bits=32")
    if kind == "wav":
        return _wav_bytes(_whole_numbers(found).astype("<i2").tobytes(), found, rate, bits)
    into, is_flac = BytesIO(), kind == "flac"
    data, subtype = (_whole_numbers(found), "PCM_16") if is_flac else (found, "VORBIS")
    try:
        soundfile_library().write(into, data, rate, format=kind.upper(), subtype=subtype)
    # The boundary to libsndfile: flac takes at most 8 channels and 655,350 Hz, vorbis less.
    except (OSError, RuntimeError, ValueError) as error:
        raise refused(
            "samples", f"{found.shape} at {rate} Hz", f"what {kind} holds: {error}"
        ) from error
    return into.getvalue()


@public
def write_sound(path: Path, samples: Given, rate: Rate) -> Path:
    """Write a sound; the name's ending says which kind: .wav, .flac or .ogg."""
    data = encode_sound.plain(samples, rate, _kind_of(path))
    with _whole(path) as part, _output_errors(path):
        part.write_bytes(data)
    return path


@public
@contextmanager
def sound_writer(
    path: Path, rate: Rate, *, ogg: Literal["vorbis", "opus"] = "vorbis"
) -> Iterator[Callable[[ArrayLike], None]]:
    """A function that writes the next samples (n,) of a file; .wav and .flac have 16 bits.

    What is beyond full scale is cut. Where the block ends with an error, no file is left; an error of
    the block's own is raised as it is.

    >>> import pathlib, tempfile
    >>> from burnish.media import sound_info, sound_writer
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.wav"
    >>> with sound_writer(file, 8000) as write:
    ...     for _ in range(3):
    ...         write([0.0, 0.5])
    >>> sound_info(file).frames
    6
    """
    import numpy as np

    target, kind, written = path, _kind_of(path), 0
    subtype = ogg.upper() if kind == "ogg" else "PCM_16"
    _check_rate(kind, rate)
    library = soundfile_library()
    with _whole(target) as part:
        with _output_errors(target):
            output = _Output(part, "w+")
        with output:
            with _output_errors(target, output):
                file = library.SoundFile(output, "w", rate, 1, subtype, format=kind.upper())

            def write(samples: ArrayLike) -> None:
                nonlocal written
                block = np.clip(SAMPLES.read("samples", samples, Call()), -1, 1)
                if block.ndim != 1:
                    raise refused("samples", samples, "samples (n,) of one channel")
                written += len(block)
                if kind == "wav" and 2 * written > MOST_WAV_BYTES:
                    raise ArgumentError(f"samples: {written:,} are over 4 GiB. Write a flac")
                data = block if kind == "ogg" else _whole_numbers(block)
                with _output_errors(target, output):
                    file.write(data)
                    output.check()

            try:
                yield write
                with _output_errors(target, output):
                    file.close()
                    output.check()
                    output.close()
            finally:
                # After an error, which is what the caller hears of; else it is closed already.
                with suppress(OSError, RuntimeError):
                    file.close()


class _Output(FileIO):
    """A file for libsndfile that keeps its first error: libsndfile does not say what fails at its close."""

    error: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        """Write all, for libsndfile takes a short write for a whole one."""
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += super().write(view[done:])
        except OSError as error:
            self.error = self.error or error
        return len(view)  # soundfile asserts it; `check` says what is wrong

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def _check_rate(kind: str, rate: int) -> None:
    if kind == "ogg" and rate > MOST_OGG_RATE:
        raise refused("rate", rate, f"at most {MOST_OGG_RATE:,} for ogg")


def _kind_of(path: Path) -> Kind:
    """The kind of a file to write, by its ending."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in KINDS:
        raise refused("path", str(path), "a file that ends in .wav, .flac or .ogg")
    return cast(Kind, kind)


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A draft to fill, which gets its name at the end; removed if anything fails."""
    part = target.with_name(f".{target.name}-{platform.node()}-{os.getpid()}.part")
    try:
        with _output_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            # Drafts of the same file whose writer, on this machine, was killed.
            own = glob.escape(f".{target.name}-{platform.node()}-")
            for old in target.parent.glob(f"{own}*.part"):
                writer = old.name.removesuffix(".part").rpartition("-")[2]
                if writer.isdecimal():
                    try:
                        os.kill(int(writer), 0)
                    except ProcessLookupError:
                        old.unlink(missing_ok=True)
                    except (OSError, OverflowError):
                        pass  # another user's
        yield part
        with _output_errors(target):
            part.replace(target)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def _output_errors(target: Path, output: _Output | None = None) -> Iterator[None]:
    """Inside, every error of the system or of libsndfile is one of the file that is written."""
    try:
        yield
    # libsndfile's errors are RuntimeErrors of its package.
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error).__module__ != "soundfile":
            raise
        cause = (output.error if output is not None else None) or error
        said = getattr(cause, "strerror", None) or cause
        raise UserError(f"{target} cannot be written: {said}") from error


def _whole_numbers(samples: Samples) -> NDArray[np.int16]:
    """Samples in steps of 16 bits."""
    import numpy as np

    # Not libsndfile's own rounding: it multiplies by 32767 and divides by 32768 on the way back.
    scale = 2.0**15
    return np.clip(np.rint(samples.astype(np.float64) * scale), -scale, scale - 1).astype(np.int16)


def _wav_bytes(data: bytes, samples: Samples, rate: int, bits: int) -> bytes:
    """A WAV by hand: libsndfile puts the time of day into those of floats."""
    wide = 1 if samples.ndim == 1 else samples.shape[1]
    if len(data) > MOST_WAV_BYTES:
        raise ArgumentError(f"samples: {len(samples):,} are over 4 GiB, which a WAV cannot hold")
    frame = wide * bits // 8
    form = struct.pack("<HHIIHH", 3 if bits == 32 else 1, wide, rate, rate * frame, frame, bits)
    if bits == 32:
        form += b"\x00\x00"
    facts = struct.pack("<4sII", b"fact", 4, len(samples)) if bits == 32 else b""
    chunks = struct.pack("<4sI", b"fmt ", len(form)) + form + facts
    pad = b"\x00" * (len(data) % 2)
    chunks += struct.pack("<4sI", b"data", len(data)) + data + pad
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks
