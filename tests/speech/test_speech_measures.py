"""What is measured of speech: pitch, rate, turns, whether a scene follows its script, and labels."""

import importlib.util
import math
import re

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from lab.long_speech.labels import agreement

from burnish.errors import UserError
from burnish.media import write_sound
from burnish.models.long_speech import Manner, Mix, ToneEngine, read_scene
from burnish.speech import (
    draft_scene,
    f0_track,
    follow_report,
    label_file,
    label_sound,
    level_db,
    measure_speech,
    meeting_distance,
    mix_scene,
    plan_scene,
    syllables,
    turn_taking,
    word_errors,
)
from burnish.speech.acoustics import MEETING_GAPS, Turn, quantiles
from burnish.speech.label import SAME_VOICE, group_voices


def tone(hz, seconds=1.0, rate=16000, loud=0.3):
    return loud * torch.sin(2 * math.pi * hz * torch.arange(round(seconds * rate)) / rate)


@pytest.mark.parametrize("rate", [8000, 16000, 24000])
@pytest.mark.parametrize("hz", [70.0, 110.0, 220.0, 440.0])
def test_pitch_of_a_tone_with_overtones(hz, rate):
    samples = tone(hz, rate=rate) + tone(2 * hz, rate=rate, loud=0.2) + tone(3 * hz, rate=rate, loud=0.1)  # fmt: skip
    assert f0_track(samples, rate).nanmedian().item() == pytest.approx(hz, rel=0.01)


def test_noise_and_silence_have_no_pitch():
    assert f0_track(torch.zeros(8000), 8000).isnan().all()
    noise = torch.randn(16000, generator=torch.Generator().manual_seed(0))
    assert f0_track(noise, 16000).isnan().float().mean() > 0.9
    assert measure_speech(torch.zeros(800), 8000, "word") == (None, None, None, None, 0.0)


def test_loudness_counts_only_what_is_heard():
    samples = torch.cat([torch.zeros(16000), tone(150.0), torch.zeros(16000)])
    found = measure_speech(samples, 16000, "one two three four")
    assert found.loudness_db == pytest.approx(20 * math.log10(0.3 / math.sqrt(2)), abs=0.4)
    assert found.speech_s == pytest.approx(1.0, abs=0.06)
    assert found.rate == pytest.approx(4 / found.speech_s)


@pytest.mark.parametrize(
    ("text", "count"),
    [("cat", 1), ("table", 2), ("please", 1), ("banana split", 4), ("", 0), ("7", 1)],
)
def test_syllables(text, count):
    assert syllables(text) == count


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [("a b c", "a b c", 0), ("a b c", "a x c", 1), ("a b c", "", 3), ("", "a", 1), ("a b", "b", 1)],
)
def test_word_errors(said, heard, errors):
    assert word_errors(said, heard) == (errors, len(said.split()))


def test_turns_gaps_and_back_channels():
    turns = [("A", 0.0, 4.0), ("B", 1.0, 1.5), ("B", 3.5, 6.0), ("B", 6.2, 7.0), ("A", 7.3, 8.0)]
    found = turn_taking(turns)
    assert found.gaps == pytest.approx([-0.5, 0.3])
    assert found.inside == pytest.approx(1 / 5)
    assert found.overlap == pytest.approx((0.5 + 0.5) / (8.0 - 0.5))
    for bad in ([("A", 2.0, 1.0)], [("A", math.nan, 1.0)], ["AB"], [("A", 1.0)]):
        with pytest.raises(UserError):
            turn_taking(bad)


def test_a_conversation_with_the_gaps_of_meetings_is_at_no_distance():
    turns, now = [], 100.0
    for place, gap in enumerate(sorted(MEETING_GAPS, key=lambda one: (abs(one), one))):
        start = now + gap
        turns.append(("AB"[place % 2], start, start + 10.0))
        now = start + 10.0
    first = ("B", 90.0, 100.0)
    assert meeting_distance([first, *turns]).gap_s == pytest.approx(0.0, abs=1e-6)
    plain = [("AB"[i % 2], 2.25 * i, 2.25 * i + 2.0) for i in range(20)]
    assert meeting_distance(plain).gap_s > 0.5
    assert quantiles([1.0, 2.0, 3.0], 3) == [1.0, 2.0, 3.0]


def play(lines=8):
    arc = [{"at": 0.0, "arousal": 0.1}, {"at": 0.5, "arousal": 0.9}, {"at": 1.0, "arousal": 0.2}]
    rows = [
        {"speaker": "AB"[i % 2], "text": f"This is the sentence number {i}."} for i in range(lines)
    ]
    rows[3]["relation"] = {"type": "overlap", "seconds": 0.2}
    return read_scene({"global": {"speakers": [{"id": "A"}, {"id": "B"}], "emotion": {"arc": arc},
                                  "environment": {"snr_db": 9.0}}, "sentences": rows})  # fmt: skip


def test_a_scene_that_obeys_is_measured_so_and_one_that_does_not_is_not():
    scene = play()
    asked = [0.1, 0.33, 0.56, 0.79, 0.8, 0.6, 0.4, 0.2]
    obeyed = follow_report(mix_scene(scene, ToneEngine(8000, 0.02))[0])
    assert min(obeyed.pitch, obeyed.rate, obeyed.loudness, obeyed.arc) > 0.95
    assert obeyed.snr_error_db < 0.01
    assert obeyed.overlap_error_s < 1e-9
    flat = follow_report(Mix(scene, ToneEngine(8000, 0.02)), asked_arousal=asked)
    assert (flat.pitch, flat.rate, flat.loudness) == (None, None, None)  # nothing was asked of it
    assert flat.arc is None or abs(flat.arc) < 0.7


def test_pitch_that_goes_the_other_way_is_seen():
    scene = play()
    manners = [Manner(pitch_st=i - 3.5) for i in range(8)]

    class Contrary(ToneEngine):
        def speak(self, line):
            return super().speak(line._replace(manner=Manner(pitch_st=-line.manner.pitch_st)))

    assert follow_report(Mix(scene, Contrary(8000, 0.02), manners=manners)).pitch < -0.9


def test_diarisation_errors_by_hand():
    true = [Turn("x", 0.0, 4.0), Turn("y", 4.0, 8.0)]
    assert agreement([Turn("S1", 0.0, 4.0), Turn("S2", 4.0, 8.0)], true)["error"] == 0.0
    assert agreement([Turn("S1", 0.0, 8.0)], true)["confused"] == pytest.approx(0.5)
    assert agreement([], true)["missed"] == 1.0
    assert agreement([*true, Turn("z", 0.0, 4.0)], true)["invented"] == pytest.approx(0.5)


def test_voices_are_grouped_and_a_mixture_is_no_third():
    first, second = torch.eye(8)[0], torch.eye(8)[1]
    windows = torch.stack([first] * 5 + [second] * 5 + [(first + second) / math.sqrt(2)] * 2)
    assert len(group_voices(windows, [1.0] * 12)) == 2


LISTENERS = ("onnxruntime", "silero_vad", "resemblyzer", "espeakng_loader", "soxr")
listening = pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in LISTENERS),
    reason=f"not installed: one of {', '.join(LISTENERS)}",
)


@listening
def test_a_rendered_dialogue_is_labelled_with_its_turns_and_its_noise():
    from burnish.speech import cast_scene

    text = "\n".join(
        f"{name}: The harbour is closed until Monday morning, and nobody here knows the reason."
        for name in ("Ann", "Ben", "Ann", "Ben")
    )
    table = draft_scene(text)
    rows = [{"speaker": one.speaker, "text": one.text, "relation": {"type": "after", "gap": 0.8}} for one in table.sentences]  # fmt: skip
    scene = read_scene({"global": {"speakers": [{"id": "Ann", "voice": "anika"}, {"id": "Ben", "voice": "m8"}], "environment": {"snr_db": 15.0}}, "sentences": rows})  # fmt: skip
    mix, _ = mix_scene(scene, cast_scene(scene), seed=1)
    label = label_sound(mix.render(), mix.sample_rate)
    assert label.speakers == 2
    assert label.snr_db == pytest.approx(15.0, abs=3.0)
    assert label.clip()["speakers"] == 2
    true = [Turn(one.speaker, span["start"], span["end"]) for one, span in zip(scene.sentences, mix.timeline, strict=True)]  # fmt: skip
    assert agreement(label.turns, true)["confused"] < 0.05
    assert set(label.scene.sources.values()) == {"plan"}
    silent = label_sound(np.zeros(16000), 16000)
    assert (silent.speakers, silent.scene, silent.snr_db) == (0, None, None)


def grouped_naively(windows, seconds, same):
    groups = [[i] for i in range(len(windows))]
    while len(groups) > 1:
        means = torch.stack([windows[one].double().sum(0) for one in groups])
        means = means / means.norm(dim=1, keepdim=True)
        cosines = (means @ means.T).fill_diagonal_(-2)
        place = int(cosines.argmax())
        first, second = sorted((place // len(groups), place % len(groups)))
        if cosines[first, second] < same:
            break
        groups[first] += groups.pop(second)
    return len([one for one in groups if len(one) * seconds >= 1.2])


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_those_of_joining_the_two_nearest_again_and_again(seed):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 64, generator=generator)
    windows = centres[torch.arange(60) % 5] + 0.8 * torch.randn(60, 64, generator=generator)
    windows = windows / windows.norm(dim=1, keepdim=True)
    before = windows.clone()
    found = group_voices(windows, [0.8] * 60)
    assert len(found) == grouped_naively(windows, 0.8, SAME_VOICE)
    assert torch.equal(windows, before)


def test_pitch_in_batches_is_pitch_at_once(monkeypatch):
    samples = torch.cat([tone(110.0), torch.zeros(8000), tone(220.0, loud=0.01)])
    whole = f0_track(samples, 16000)
    monkeypatch.setattr("burnish.speech.acoustics.BATCH", 7)
    assert torch.equal(f0_track(samples, 16000).nan_to_num(-1), whole.nan_to_num(-1))


@pytest.mark.parametrize("offset", [0.05, -0.2])
def test_an_offset_is_no_sound(offset):
    samples = torch.cat([torch.zeros(16000), tone(150.0, loud=0.1), torch.zeros(16000)])
    clean, shifted = (measure_speech(one, 16000, "one two") for one in (samples, samples + offset))
    assert shifted.loudness_db == pytest.approx(clean.loudness_db, abs=0.01)
    assert shifted.speech_s == clean.speech_s
    assert shifted.rate == pytest.approx(clean.rate)
    assert level_db(samples + offset, 16000) == pytest.approx(level_db(samples, 16000), abs=0.01)


@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (48000, 2), (8000, 1), (44100, 6)])
def test_the_clipped_share_is_one_of_the_files_own_samples(tmp_path, monkeypatch, rate, channels):
    pytest.importorskip("soundfile", reason="reading sounds needs soundfile")
    pytest.importorskip("soxr", reason="another rate needs soxr")
    monkeypatch.setattr("burnish.speech.label.speech_segments", lambda *_: [])
    samples = np.full((rate, channels), 0.2)
    samples[: rate // 10] = 1.0
    write_sound(tmp_path / "a.wav", samples, rate)
    assert label_file(tmp_path / "a.wav").clipped == pytest.approx(0.1, abs=1e-3)


@listening
def test_the_label_of_a_recording_does_not_change_with_its_offset():
    from burnish.speech import cast_scene

    scene = draft_scene("Ann: The harbour is closed until Monday morning, and nobody knows why.")
    mix, _ = mix_scene(scene, cast_scene(scene))
    samples = torch.nn.functional.pad(mix.render(), (mix.sample_rate, mix.sample_rate)).double()
    samples += 1e-3 * torch.randn(len(samples), generator=torch.Generator().manual_seed(0))
    clean, shifted = (label_sound(one, mix.sample_rate) for one in (samples, samples + 0.05))
    assert shifted.snr_db == pytest.approx(clean.snr_db, abs=0.1)
    assert shifted.bandwidth_hz == pytest.approx(clean.bandwidth_hz, rel=0.02)
    assert shifted.speech_s == pytest.approx(clean.speech_s, abs=0.1)


def test_the_report_measures_the_background_where_somebody_talks():
    paused = msgspec.to_builtins(play())
    for row in paused["sentences"]:
        row["text"] = row["text"].replace(" is ", " is [pause 4] ")
    mix, _ = mix_scene(read_scene(paused), ToneEngine(8000, 0.02), seed=1)
    assert follow_report(mix).snr_error_db < 0.01
    mix._noise_gain /= 10
    assert follow_report(mix).snr_error_db == pytest.approx(20.0, abs=0.01)


def test_a_planned_scene_names_what_no_engine_can_do():
    scene = plan_scene(draft_scene("Ann: [laugh] That is funny, is it not?"))
    _, warnings = mix_scene(scene, ToneEngine(8000, 0.02))
    assert any("laugh or sigh" in one for one in warnings)


@pytest.mark.parametrize(
    ("said", "heard", "expected"),
    [
        ("café naïve", "cafe naive", (0, 2)),
        ("café naïve", "CAFE\u0301, nai\u0308ve!", (0, 2)),
        ("привет мир", "Привет, мир!", (0, 2)),
        ("привет мир", "x", (2, 2)),
        ("Straße", "STRASSE", (0, 1)),
        ("नमस्ते दुनिया", "नमस्ते दुनिया", (0, 2)),
        ("सीता", "सूता", (1, 1)),
        ("don’t stop", "don't stop", (0, 2)),
        ("one_two", "one two", (0, 2)),
        ("… — !", "", (0, 0)),
    ],
)
def test_words_of_any_language(said, heard, expected):
    assert word_errors(said, heard) == expected


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_plain_english_are_letters_digits_and_apostrophes(text):
    words = re.findall(r"[a-z0-9']+", text.lower())
    assert word_errors(text, " ".join(words)) == (0, len(words))
