"""A sound as something to look at: its waveform and spectrogram, in a few hundred columns.

Read in blocks, so that the length of a sound does not matter for memory. The spectrogram has one
window of 1,024 samples a column and bands of equal width on a logarithmic scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from burnish.boundary import PositiveInt, public
from burnish.errors import UserError
from burnish.media.sounds import sound_info, stream_sound

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

WINDOW = 1024
LOWEST_HZ = 60.0
FLOOR_DB = -90.0
"""What is drawn as silence."""
MOST_FRAMES = 2**28
"""Of a sound that is drawn: 4.6 hours at 16 kHz. A small file can promise days of silence."""


class SoundPicture(Struct, frozen=True):
    """What is drawn of a sound."""

    seconds: float
    rate: int
    channels: int
    peaks: list[tuple[int, int]]
    """Lowest and highest sample of each column, -127 to 127."""
    bands: bytes
    """Loudness from 0 to 255, column by column, from the lowest band to the highest."""
    band_count: int
    lowest_hz: float
    highest_hz: float


@public
def sound_picture(
    source: str | Path | bytes,
    *,
    columns: PositiveInt = 480,
    bands: PositiveInt = 64,
) -> SoundPicture:
    """The waveform and the spectrogram of a sound, mixed to mono.

    >>> from burnish.media import encode_sound
    >>> sound_picture(encode_sound([0.0, 1.0, -1.0, 0.0], 8000), columns=2, bands=4).peaks
    [(0, 127), (-127, 0)]
    """
    import numpy as np

    info = sound_info(source)
    if info.frames > MOST_FRAMES:
        raise UserError(f"a sound of {info.seconds / 3600:,.1f} hours is not drawn; cut it")
    columns = min(columns, info.frames)
    edges = (np.arange(columns + 1) * info.frames) // columns
    lows, highs = np.zeros(columns), np.zeros(columns)
    centres = (edges[:-1] + edges[1:]) // 2
    loud = np.full((columns, bands), FLOOR_DB)
    # The band of each bin of the spectrum; -1 below the lowest.
    hertz = np.fft.rfftfreq(WINDOW, 1 / info.rate)
    limits = np.geomspace(min(LOWEST_HZ, info.rate / 4), info.rate / 2, bands + 1)
    groups = np.clip(np.searchsorted(limits, hertz, side="right") - 1, -1, bands - 1)
    # The sound so far that a window may still need, and the place of its first sample.
    held, first, drawn = np.zeros(WINDOW // 2), -(WINDOW // 2), 0
    done = 0
    for block in stream_sound.plain(source, 1.0):
        # The columns that the block touches become wider.
        left = int(np.searchsorted(edges, done, side="right")) - 1
        right = min(int(np.searchsorted(edges, done + len(block), side="left")), columns)
        if left < right:
            cuts = np.maximum(edges[left:right] - done, 0)
            lows[left:right] = np.minimum(lows[left:right], np.minimum.reduceat(block, cuts))
            highs[left:right] = np.maximum(highs[left:right], np.maximum.reduceat(block, cuts))
        done += len(block)
        held = np.concatenate([held, block])
        ready = int(np.searchsorted(centres, done - WINDOW // 2, side="right"))
        loud[drawn:ready] = _loudness(held, first, centres[drawn:ready], groups, bands)
        drawn = max(drawn, ready)
        kept = min(len(held), WINDOW + info.rate)
        first, held = first + len(held) - kept, held[len(held) - kept :]
    rest = np.concatenate([held, np.zeros(WINDOW)])
    # An MP3 may end before its header says: silence from there on.
    end = int(np.searchsorted(centres, done, side="right"))
    loud[drawn:end] = _loudness(rest, first, centres[drawn:end], groups, bands)
    scaled = np.clip(np.round(255 * (1 - loud / FLOOR_DB)), 0, 255).astype(np.uint8)
    whole = np.clip(np.round(127 * np.stack([lows, highs], 1)), -127, 127).astype(int)
    return SoundPicture(
        seconds=info.seconds,
        rate=info.rate,
        channels=info.channels,
        peaks=[(int(low), int(high)) for low, high in whole],
        bands=scaled.tobytes(),
        band_count=bands,
        lowest_hz=min(LOWEST_HZ, info.rate / 4),
        highest_hz=info.rate / 2,
    )


def _loudness(held: Floats, first: int, centres: Any, groups: Any, bands: int) -> Floats:
    """dB of each band in the window around each centre; 0 dB is a sine at full scale."""
    import numpy as np

    found = np.full((len(centres), bands), FLOOR_DB)
    if not len(centres):
        return found
    begins = centres - WINDOW // 2 - first
    windows = held[begins[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    power = (np.abs(np.fft.rfft(windows)) / (WINDOW / 4)) ** 2
    for band in range(bands):
        chosen = groups == band
        if not chosen.any():
            # A band narrower than a bin shows the bin that it lies in.
            chosen = [max(int(np.searchsorted(groups, band, side="left")) - 1, 0)]
        bins = power[:, chosen]
        found[:, band] = 10 * np.log10(bins.max(1) + 10 ** (FLOOR_DB / 10))
    return found
