"""The picture of a sound: a tone stands in its band, silence is dark, length does not matter."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.errors import UserError
from burnish.media import encode_sound, sound_picture

pytest.importorskip("soundfile", reason="soundfile is not installed")


def test_a_tone_and_silence():
    rate = 16000
    time = np.arange(rate * 4) / rate
    sound = 0.5 * np.sin(2 * np.pi * 1000 * time) * (time < 2)
    picture = sound_picture(encode_sound(sound, rate), columns=200, bands=32)
    loud = np.frombuffer(picture.bands, np.uint8).reshape(200, 32)
    edges = np.geomspace(picture.lowest_hz, picture.highest_hz, 33)
    band = int(loud[50].argmax())
    assert edges[band] <= 1000 <= edges[band + 1]
    # -6 dB of 90 that are drawn.
    assert loud[50, band] == pytest.approx(255 * (1 - 6.02 / 90), abs=2)
    assert loud[-1].max() == 0
    assert picture.peaks[50] == (-64, 64)
    assert picture.peaks[-1] == (0, 0)
    assert picture.seconds == 4


@pytest.mark.parametrize("count", [1, 2, 479, 481, 1023, 8001])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_length_has_its_columns(count, channels):
    picture = sound_picture(encode_sound(np.full((count, channels), 0.5), 8000))
    assert len(picture.peaks) == min(count, 480)
    assert set(picture.peaks) == {(0, 64)}
    assert len(picture.bands) == len(picture.peaks) * picture.band_count


def test_days_of_silence_are_not_drawn(monkeypatch):
    monkeypatch.setattr("burnish.media.waveform.MOST_FRAMES", 100)
    with pytest.raises(UserError, match="is not drawn"):
        sound_picture(encode_sound(np.zeros(200), 8000, "flac"))


def test_an_mp3_that_ends_early_is_drawn_to_its_end():
    import io

    import soundfile

    into = io.BytesIO()
    noise = np.random.default_rng(3).normal(0, 0.1, 16000 * 9)
    soundfile.write(into, noise, 16000, format="MP3")
    whole = into.getvalue()
    picture = sound_picture(whole[: len(whole) * 98 // 100], columns=90, bands=8)
    loud = np.frombuffer(picture.bands, np.uint8).reshape(90, 8)
    assert loud[5].max() > 50
    assert loud[-1].max() == 0
    assert picture.peaks[-1] == (0, 0)
    with pytest.raises(UserError, match=r"its header says 9\.00 s"):
        sound_picture(whole[: len(whole) // 3])
