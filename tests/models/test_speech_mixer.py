"""The mixer of long speech: exact in chunks, exact in level, the same for the same seed."""

import math

import numpy as np
import pytest
import torch

from burnish.errors import ModelError, UserError
from burnish.models.long_speech import (
    Manner,
    Mix,
    ToneEngine,
    overlap_statistics,
    place_sentences,
    read_scene,
    room_impulse,
)
from burnish.models.long_speech.mixer import PEAK, convolve

RATE = 1000


def line(speaker, text, kind="after", **rest):
    return {"speaker": speaker, "text": text, "relation": {"type": kind, **rest}}


TALK = (
    line("A", "Have you heard the news?"),
    line("B", "Which news?", "interrupt", at=0.4),
    line("C", "Mhm.", "with", ref=0, offset=0.3),
    line("A", "The harbour is closed.", "overlap", seconds=0.3),
    line("B", "Again?", gap=0.5),
)


def scene(*sentences, **overall):
    speakers = [{"id": name} for name in "ABC"]
    return read_scene(
        {"global": {"speakers": speakers, **overall}, "sentences": list(sentences or TALK)}
    )


def tones():
    return ToneEngine(RATE, second_a_letter=0.05)


ROOM = {"environment": {"snr_db": 12.0, "reverb_s": 0.4}}


class Fixed:
    """Says the same samples for every sentence."""

    sample_rate = RATE

    def __init__(self, *samples):
        self.samples = samples

    def speak(self, line):
        return self.samples[line.place % len(self.samples)]


class Counting(ToneEngine):
    def __init__(self):
        super().__init__(RATE, second_a_letter=0.05)
        self.asked = []

    def speak(self, line):
        self.asked.append(line)
        return super().speak(line)


@pytest.mark.parametrize("overall", [{}, ROOM], ids=["dry", "room and background"])
@pytest.mark.parametrize("seconds", [0.001, 0.0373, 0.5, 1.0, 100.0])
def test_chunks_are_the_whole_bit_by_bit(overall, seconds):
    mix = Mix(scene(**overall), tones(), seed=3)
    whole = mix.render()
    if seconds == 0.001:  # a sample at a time, of a part
        parts = [mix.samples(place, place + 1) for place in range(900, 1100)]
        assert torch.equal(torch.cat(parts), whole[900:1100])
    else:
        assert torch.equal(torch.cat(list(mix.chunks(seconds))), whole)


def test_chunks_are_exact_when_the_cache_holds_almost_nothing(monkeypatch):
    whole = Mix(scene(**ROOM), tones(), seed=3).render()
    monkeypatch.setattr("burnish.models.long_speech.mixer.KEPT", 1)
    engine = Counting()
    mix = Mix(scene(**ROOM), engine, seed=3)
    assert torch.equal(torch.cat(list(mix.chunks(0.1))), whole)
    assert len(engine.asked) > len(TALK)
    assert len(set(engine.asked)) == len(TALK)  # the same line, whenever it is asked for


def test_the_same_seed_gives_the_same_samples_and_another_does_not():
    first, same, other = (Mix(scene(**ROOM), tones(), seed=seed).render() for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("snr_db", [-10.0, 0.0, 7.5, 40.0])
@pytest.mark.parametrize("reverb_s", [0.0, 0.3])
def test_the_background_is_as_loud_as_asked_while_somebody_talks(snr_db, reverb_s):
    quiet = Mix(scene(environment={"reverb_s": reverb_s}), tones(), seed=5)
    noisy = Mix(scene(environment={"snr_db": snr_db, "reverb_s": reverb_s}), tones(), seed=5)
    active = torch.zeros(noisy.length, dtype=torch.bool)
    for span in noisy.timeline:
        active[round(span["start"] * RATE) : round(span["end"] * RATE)] = True
    # Both may have been made softer as a whole to stay below the limit.
    speech = quiet.render().double() / quiet._scale
    noise = noisy.render().double() / noisy._scale - speech
    measured = 10 * math.log10(speech[active].square().mean() / noise[active].square().mean())
    assert measured == pytest.approx(snr_db, abs=1e-2)


def test_silence_stays_silent_and_loudness_has_a_limit():
    silent = Mix(scene(**ROOM), Fixed(np.zeros(300)), seed=0)
    assert not silent.render().any()
    loud = Mix(
        scene(), Fixed(np.ones(3000)), seed=0, manners=[Manner(gain_db=40.0)] * len(TALK)
    ).render()
    assert loud.abs().max() == pytest.approx(PEAK, abs=1e-6)
    soft = Mix(scene(), Fixed(np.full(3000, 0.1)), seed=0).render()
    assert soft.abs().max() <= 0.1 * 3  # nothing is made louder


def test_samples_of_a_dry_scene_are_the_sentences_where_they_belong():
    one, two = np.full(1000, 0.25), np.full(400, 0.5)
    lines = (line("A", "a", gap=0.1), line("B", "b", "overlap", seconds=0.3))
    mix = Mix(
        scene(*lines), Fixed(one, two), manners=[Manner(), Manner(gain_db=20 * math.log10(0.5))]
    )
    expected = np.zeros(1200)
    expected[100:1100] += one
    expected[800:1200] += two / 2
    np.testing.assert_allclose(mix.render().numpy(), expected, atol=1e-7)
    assert overlap_statistics(mix.timeline).overlap == pytest.approx(0.3)


def test_an_interrupted_sentence_fades_out_and_ends():
    lines = (line("A", "a", gap=0), line("B", "b", "interrupt", at=0.5))
    mix = Mix(scene(*lines), Fixed(np.full(1000, 0.25), np.zeros(100)))
    samples = mix.render().numpy()
    assert mix.timeline[0] == {"start": 0.0, "end": 0.65, "cut": True}
    assert (samples[:620] == 0.25).all()
    assert (np.diff(samples[620:650]) < 0).all()
    assert samples[649] == pytest.approx(0, abs=1e-6)
    assert len(samples) == 650


def test_a_room_decays_by_60_dB_and_keeps_the_direct_sound():
    impulse = room_impulse(1.0, 20_000, seed=4)
    tail = impulse[1:].square()
    early, late = tail[:2000].mean(), tail[-2000:].mean()
    # The middles of the first and last tenth are 0.9 s apart: 54 dB.
    assert 10 * math.log10(early / late) == pytest.approx(54, abs=1)
    assert impulse[0] == 1
    assert room_impulse(0.0, RATE, seed=1).tolist() == [1.0]
    samples = torch.randn(50, dtype=torch.float64)
    expected = np.convolve(samples.numpy(), impulse[:30].numpy())
    np.testing.assert_allclose(convolve(samples, impulse[:30]).numpy(), expected, atol=1e-12)


def test_an_echo_goes_on_after_the_last_word():
    dry, wet = Mix(scene(), tones()), Mix(scene(environment={"reverb_s": 0.4}), tones())
    assert wet.length == dry.length + 400
    assert wet.render()[dry.length :].any()
    assert wet.timeline == dry.timeline


def test_events_are_heard_where_they_stand_and_missing_ones_are_told():
    events = [
        {"caption": "door", "at": 0.5, "duration": 0.1, "gain_db": -20.0},
        {"caption": "rain", "at": 0.0, "duration": 1.0},
    ]
    mix = Mix(
        scene(line("A", "a"), events=events), Fixed(np.zeros(100)), sounds={"door": [1.0] * 200}
    )
    samples = mix.render()
    assert samples[500:600].tolist() == pytest.approx([0.1] * 100)
    assert not samples[:500].any()
    assert mix.length == 600
    assert mix.warnings == ["global.events[1]: no sound for 'rain'; it is left out"]


def test_an_engine_that_says_nothing_or_nonsense():
    mix = Mix(scene(line("A", "a", gap=0)), Fixed([]))
    assert mix.length == 50
    assert mix.warnings == ["sentences[0]: the engine said nothing; 0.05 s of silence"]
    for bad in ([math.nan, 0.0], [[0.0, 0.1], [0.2, 0.3]], "words", None):
        with pytest.raises(ModelError, match=r"sentences\[0\]") as refusal:
            Mix(scene(line("A", "a")), Fixed(bad))
        assert "\n" not in str(refusal.value)


def test_an_overlap_longer_than_what_it_overlaps_is_refused():
    lines = scene(line("A", "a"), line("B", "b", "overlap", seconds=2.0))
    with pytest.raises(
        UserError, match=r"sentences\[1\].relation.seconds: got 2, expected at most 1"
    ):
        place_sentences(lines, [1.0, 1.0])


@pytest.mark.parametrize("snr_db", [0.0, 12.0])
@pytest.mark.parametrize("reverb_s", [0.0, 0.3])
def test_marked_pauses_do_not_make_the_background_softer(snr_db, reverb_s):
    """Measured on the rendered sound alone: power in the words beside power in the pause."""
    talk = scene(
        line("A", "Hello there [pause 6] my friend.", gap=0.5),
        environment={"snr_db": snr_db, "reverb_s": reverb_s},
    )
    mix = Mix(talk, ToneEngine(8000, second_a_letter=0.1), seed=2)
    sound = mix.render().double()
    # "Hello there" and "my friend." take 1.1 and 1 s; an echo is over after its own length.
    first, pause, last = 0.5, 0.5 + 1.1, 0.5 + 1.1 + 6.0
    words = [(first, pause), (last, last + 1.0)]

    def power(*spans):
        parts = [sound[round(a * 8000) : round(b * 8000)] for a, b in spans]
        return torch.cat(parts).square().mean()

    noise = power((0.0, first), (pause + reverb_s, last))
    assert 10 * math.log10((power(*words) - noise) / noise) == pytest.approx(snr_db, abs=0.5)


def test_a_sentence_that_is_only_a_pause_changes_no_level():
    environment = {"snr_db": 10.0}
    words = (line("A", "Hello there."), line("A", "Hello again."))
    plain = Mix(scene(*words, environment=environment), tones(), seed=1)
    paused = Mix(
        scene(words[0], line("B", "[pause 30]"), words[1], environment=environment), tones(), seed=1
    )
    assert paused._noise_gain == pytest.approx(plain._noise_gain, rel=0.1)
    silent = Mix(scene(line("A", "[pause 2]"), environment=environment), tones(), seed=1)
    assert not silent.active(0, silent.length).any()
    assert not silent.render().any()
