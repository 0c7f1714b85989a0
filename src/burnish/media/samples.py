"""Samples in memory: checked, and brought to another rate.

resample(samples, 44100, 16000)                 # round(n * 16000 / 44100) samples, without delay
for block in at_rate(blocks, 44100, 16000):     # the same, block by block
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from burnish.arguments import as_whole, refused
from burnish.errors import ArgumentError, UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Samples = NDArray[np.float32]

LEAST_RATE, MOST_RATE = 1_000, 768_000
MOST_CHANNELS = 64


def resample(samples: ArrayLike, rate: int, to: int) -> Samples:
    """Samples (n,) or (n, channels) at another rate: `round(n * to / rate)` of them, without delay.

    >>> len(resample([0.0] * 441, 44100, 16000))
    160
    """
    import numpy as np

    found = as_samples("samples", samples)
    blocks = at_rate(iter([found]), as_rate("rate", rate), as_rate("to", to))
    return np.concatenate(list(blocks))


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
        missing = _length(taken, rate, target) - given
        short = missing - len(tail)
        if short > 0:
            tail = np.concatenate([tail, np.zeros((short, *tail.shape[1:]), np.float32)])
        yield tail[: max(missing, 0)]


def _length(count: int, rate: int, target: int) -> int:
    return max(1, round(count * target / rate))


def as_samples(what: str, samples: ArrayLike) -> Samples:
    """Finite samples (n,) or (n, channels) in float32, at least one; tensors are taken too."""
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


def as_rate(what: str, value: Any) -> int:
    """A sampling rate in Hz that a sound can have, 1,000 to 768,000."""
    return as_whole(what, value, low=LEAST_RATE, high=MOST_RATE)


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
