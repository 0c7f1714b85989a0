"""Sounds come back as they were written, whole or in blocks; hostile files get one line."""

from __future__ import annotations

import io
import os
import platform
import resource
import signal
import struct
from contextlib import contextmanager

import numpy as np
import pytest

from burnish.errors import ArgumentError, UserError
from burnish.media import (
    encode_sound,
    read_sound,
    resample,
    sound_info,
    sound_picture,
    sound_writer,
    stream_sound,
    write_sound,
)

pytest.importorskip("soundfile", reason="soundfile is not installed")
pytest.importorskip("soxr", reason="soxr is not installed")


def noise(count=6000, channels=None):
    shape = (count,) if channels is None else (count, channels)
    whole = np.random.default_rng(7).integers(-32767, 32767, shape)
    return (whole / 32768).astype(np.float32)


def tone(rate, seconds=0.5, hertz=440.0):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


@pytest.mark.parametrize(("kind", "bits"), [("wav", 16), ("wav", 32), ("flac", 16)])
@pytest.mark.parametrize("channels", [None, 2, 8])
def test_lossless_kinds_come_back_exactly(kind, bits, channels):
    samples = noise(channels=channels)
    data = encode_sound(samples, 8000, kind, bits=bits)
    found = read_sound(data)
    mixed = samples if channels is None else samples.astype(np.float64).mean(-1)
    assert np.array_equal(found.samples, mixed.astype(np.float32))
    assert (found.rate, sound_info(data).channels) == (8000, channels or 1)
    assert encode_sound(samples, 8000, kind, bits=bits) == data


def test_wav_is_read_alike_by_others():
    import soundfile

    samples = noise(channels=2)
    read, rate = soundfile.read(io.BytesIO(encode_sound(samples, 8000)), dtype="float32")
    assert rate == 8000
    assert np.array_equal(read, samples)


def test_mono_is_the_mean_of_the_channels():
    data = encode_sound([[0.5, 0.0], [0.25, -0.25]], 8000)
    assert read_sound(data).samples.tolist() == [0.25, 0.0]


def test_ogg_and_a_path(tmp_path):
    path = write_sound(tmp_path / "deep" / "tone.ogg", tone(16000), 16000)
    found = read_sound(path)
    assert len(found.samples) == 8000
    assert np.abs(found.samples - tone(16000)).max() < 0.05


@pytest.mark.parametrize(("rate", "to"), [(44100, 16000), (8000, 44100), (192000, 16000)])
def test_resampled_has_no_delay_and_the_right_length(rate, to):
    found = resample(tone(rate), rate, to)
    assert len(found) == to // 2
    middle = slice(to // 10, -to // 10)
    assert np.abs(found[middle] - tone(to)[middle]).max() < 1e-3


def test_blocks_equal_the_whole(tmp_path):
    path = write_sound(tmp_path / "long.flac", noise(50_000, 2), 22050)
    whole = read_sound(path, rate=16000).samples
    blocks = list(stream_sound(path, 0.31, rate=16000))
    assert {len(block) for block in blocks[:-1]} == {round(0.31 * 16000)}
    assert np.array_equal(np.concatenate(blocks), whole)
    assert np.array_equal(whole, resample(read_sound(path).samples, 22050, 16000))


def test_eight_channels_at_192_khz():
    found = read_sound(encode_sound(np.tile(tone(192000)[:, None], 8), 192000), rate=16000)
    assert len(found.samples) == 8000


def test_one_sample_stays_one():
    assert len(resample([0.5], 44100, 8000)) == 1


def test_clipped_samples_are_counted():
    assert read_sound(encode_sound([1.0, -1.0, 0.5, 0.99], 8000)).clipped == 2
    assert read_sound(encode_sound([1.5, -1.0, 0.5], 8000, bits=32)).clipped == 2


def test_a_bomb_of_silence_is_refused_before_it_fills_memory(monkeypatch):
    monkeypatch.setattr("burnish.media.sounds.MOST_VALUES", 10_000)
    data = encode_sound(np.zeros(20_000), 8000, "flac")
    assert len(data) < 200
    with pytest.raises(UserError, match="at most 10,000 samples in memory"):
        read_sound(data)
    assert sum(map(len, stream_sound(data, 1.0))) == 20_000


def lying_flac(frames):
    data = bytearray(encode_sound(noise(), 8000, "flac"))
    # STREAMINFO's 36-bit count of samples ends 18 bytes into the block, which begins at byte 8.
    data[22:26] = struct.pack(">I", frames)
    return bytes(data)


def wav(data=b"", size=None, rate=8000, channels=1):
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data"
    body += struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


HOSTILE = {
    "nothing": (b"", "an empty file"),
    "no samples": (wav(), "has no samples"),
    "header alone": (wav()[:36], "without a data chunk"),
    "lying data chunk": (wav(b"\0" * 100, size=10**9), "its header says 1,000,000,000"),
    "lying rate": (wav(b"\0" * 100, rate=2_000_000_000), "samples a second; expected"),
    "lying channels": (wav(b"\0" * 2000, channels=100), "100 channels; expected at most 64"),
    "cut wav": (encode_sound(noise(), 8000)[:-500], "cut off or damaged"),
    "cut flac": (encode_sound(noise(), 8000, "flac")[:-3000], "cut off or damaged"),
    "lying flac": (lying_flac(2**31), "cut off or damaged"),
    "svg": (b"<?xml version='1.0'?><svg/>", "SVG, XML or HTML text"),
    "image": (b"\x89PNG\r\n\x1a\n....", r"PNG \(image/png\); expected a WAV"),
    "aiff": (b"FORM\0\0\0\0AIFF", "an AIFF sound"),
    "garbage in a flac": (b"fLaC" + b"\xff" * 900, "FLAC"),
    "garbage in an ogg": (b"OggS" + b"\xff" * 900, "Ogg"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sounds_get_one_line(name, tmp_path):
    data, line = HOSTILE[name]
    path = tmp_path / "sound.wav"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(UserError, match=line) as raised:
            read_sound(source)
        assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_in_a_file_has_its_place(bad):
    data = encode_sound([0.0] * 8000 + [0.5] * 100, 8000, bits=32)
    data = data.replace(struct.pack("<f", 0.5), struct.pack("<f", bad), 1)
    with pytest.raises(UserError, match=r"NaN, infinity or a sample beyond 1e\+37 at 1\.000 s"):
        read_sound(data)


def test_a_sample_that_float32_cannot_hold_has_its_place():
    soundfile = pytest.importorskip("soundfile")
    for kind, largest in (("DOUBLE", 1e308), ("FLOAT", 3e38)):
        into = io.BytesIO()
        soundfile.write(into, [0.0] * 4000 + [-largest], 8000, format="WAV", subtype=kind)
        with pytest.raises(UserError, match=r"a sample beyond 1e\+37 at 0\.500 s"):
            read_sound(into.getvalue(), rate=16000)


def test_a_wav_from_a_pipe_is_read_to_its_end():
    assert len(read_sound(wav(b"\0" * 100, size=0xFFFFFFFF)).samples) == 50


def test_a_cut_ogg_is_not_read_as_a_shorter_one():
    whole = encode_sound(tone(16000, 3.0), 16000, "ogg")
    assert read_sound(whole).seconds == 3.0
    for end in (len(whole) // 2, len(whole) - 1, 20):
        with pytest.raises(UserError, match="ends inside a page of Ogg"):
            sound_info(whole[:end])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_without_all_its_pages_is_refused(subtype):
    whole = encoded(8, "OGG", subtype)
    pages = [place for place in range(len(whole)) if whole.startswith(b"OggS", place)]
    third, fourth = pages[3:5]
    flipped = bytearray(whole)
    flipped[(third + fourth) // 2] ^= 1
    damaged = f"damaged or missing page of Ogg at byte {third:,}[.]"
    for data, line in (
        (whole[:fourth], "has no last page of Ogg"),
        (whole[:third] + whole[fourth:], damaged),
        (bytes(flipped), damaged),
    ):
        with pytest.raises(UserError, match=line):
            read_sound(data)
    with pytest.raises(UserError, match="holds several sounds, one behind the other"):
        read_sound(whole + whole)
    # What other programs put behind the last page is not looked at.
    assert read_sound(whole + b"TAG" + bytes(125)).seconds == 8.0


def encoded(seconds, kind, subtype=None):
    """A noisy tone, by libsndfile."""
    soundfile = pytest.importorskip("soundfile")
    into = io.BytesIO()
    noisy = tone(16000, seconds) + np.random.default_rng(3).normal(0, 0.05, 16000 * seconds)
    soundfile.write(into, noisy, 16000, format=kind, subtype=subtype)
    return into.getvalue()


def test_an_mp3_that_is_decoded_in_part_is_refused():
    whole = encoded(8, "MP3")
    assert read_sound(whole).seconds == 8.0
    assert read_sound(whole + b"TAG" + bytes(125)).seconds == 8.0
    for share in (0.3, 0.9):
        with pytest.raises(UserError, match=r"its header says 8\.00 s"):
            read_sound(whole[: round(len(whole) * share)])
    # Tags on both sides are no sound, and hide none.
    id3 = b"ID3\3\0\0\0\0\1\0" + bytes(128)
    ape = bytes(2000) + b"APETAGEX" + struct.pack("<IIII", 2000, 2032, 1, 0) + bytes(8)
    assert read_sound(id3 + id3 + whole + ape + b"TAG" + bytes(125)).seconds == 8.0
    with pytest.raises(UserError, match=r"its header says 8\.00 s"):
        read_sound(id3 + id3 + whole[: len(whole) // 2])
    # Without the frame that says how long it is, libsndfile stops in the middle of a variable bit rate.
    second_frame = whole.index(whole[:2], 4)
    with pytest.raises(UserError, match="behind what can be decoded"):
        read_sound(whole[second_frame:])


def test_a_flac_from_a_pipe_has_no_invented_length():
    with pytest.raises(UserError, match="does not say how long it is"):
        sound_info(lying_flac(0))


def test_mp3_of_low_rates_is_known():
    soundfile = pytest.importorskip("soundfile")
    into = io.BytesIO()
    soundfile.write(into, tone(8000, 1.0), 8000, format="MP3")
    assert sound_info(into.getvalue()).media_type == "audio/mpeg"


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg"])
def test_a_file_written_in_blocks_is_the_file_written_whole(tmp_path, kind):
    wave = np.sin(np.arange(5000) / 7).astype(np.float32)
    write_sound(tmp_path / f"whole.{kind}", wave, 8000)
    with sound_writer(tmp_path / f"blocks.{kind}", 8000) as write:
        for part in np.split(wave, [1, 700, 4999]):
            write(part)
    whole, blocks = (read_sound(tmp_path / f"{name}.{kind}") for name in ("whole", "blocks"))
    np.testing.assert_allclose(blocks.samples, whole.samples, atol=0.05 if kind == "ogg" else 0)
    if kind == "wav":
        assert (tmp_path / "blocks.wav").read_bytes() == (tmp_path / "whole.wav").read_bytes()


def in_blocks(path, *blocks):
    with sound_writer(path, 8000) as write:
        for block in blocks:
            write(block)


def test_the_draft_of_a_file_is_this_process_s_own(tmp_path):
    with sound_writer(tmp_path / "a.wav", 8000) as write:
        write([0.5])
        assert [file.name for file in tmp_path.iterdir()] == [
            f".a.wav-{platform.node()}-{os.getpid()}.part"
        ]


def test_a_file_that_fails_half_way_is_not_there(tmp_path):
    with pytest.raises(ArgumentError, match="NaN"):
        in_blocks(tmp_path / "a.wav", [0.5, 7.0], [np.nan])
    assert list(tmp_path.iterdir()) == []
    in_blocks(tmp_path / "a.wav", [0.5, 7.0])
    assert read_sound(tmp_path / "a.wav").samples.tolist() == [0.5, 1 - 2**-15]


@contextmanager
def disk_of(size):
    """Inside, no file can be larger: the system refuses the rest, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("missing", [10, 4000, None])
def test_a_disk_that_is_full_at_the_close_leaves_no_file(tmp_path, kind, missing):
    whole, target = tmp_path / f"whole.{kind}", tmp_path / f"a.{kind}"
    in_blocks(whole, noise(20_000), noise(20_000))
    size = whole.stat().st_size
    with (
        disk_of(10 if missing is None else size - missing),
        pytest.raises(UserError, match=rf"a\.{kind} cannot be written: File too large"),
    ):
        in_blocks(target, noise(20_000), noise(20_000))
    assert list(tmp_path.iterdir()) == [whole]


def test_an_error_of_an_input_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError, match="input"), sound_writer(tmp_path / "a.wav", 8000):
        (tmp_path / "input").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_gets_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for write in (lambda path: write_sound(path, [0.5], 8000), lambda path: in_blocks(path, [0.5])):
        with pytest.raises(UserError, match=r"a\.wav cannot be written: (File exists|Not a dir)"):
            write(tmp_path / "file/a.wav")


def test_what_is_no_file(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_sound(tmp_path / "no.wav")
    with pytest.raises(UserError, match="not a plain file"):
        read_sound(tmp_path)


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
