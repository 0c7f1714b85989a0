"""Captions to numbers, texts to scripts, and plans that never touch what the user wrote."""

import math

import anyio
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from burnish.errors import ArgumentError, UserError
from burnish.lm.replay import ScriptedLM
from burnish.models.long_speech import Manner, read_scene
from burnish.models.long_speech.engine import LIMITS
from burnish.models.long_speech.scene import leaves
from burnish.speech import (
    draft_scene,
    open_slots,
    plan_prompt,
    plan_scene,
    plan_with_lm,
    read_caption,
    read_plan,
    resolve_manners,
)
from burnish.speech.plan_text import DIMENSIONS, plan_reply
from burnish.speech.planner import drafted

CAPTIONS = st.sampled_from(["", "tired", "very fast", "-3 dB", "whispered", "mauve", "not loud"])


@st.composite
def scenes(draw):
    speakers = ["A", "B", "C"][: draw(st.integers(1, 3))]
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        row = {"speaker": draw(st.sampled_from(speakers)), "text": draw(st.sampled_from(["Run!", "Where are you now?", "I am sorry... goodbye.", "It is a long way from here to the old harbour and nobody goes."]))}  # fmt: skip
        row |= {name: value for name in DIMENSIONS if (value := draw(CAPTIONS))}
        if draw(st.booleans()):
            row["relation"] = {"type": "after", "gap": draw(st.floats(0, 2))}
        rows.append(row)
    overall = {"speakers": [{"id": one} for one in speakers]}
    if draw(st.booleans()):
        overall["emotion"] = {"arc": [{"at": 0.0, "arousal": draw(st.floats(0, 1))}]}
    if draw(st.booleans()):
        overall["environment"] = {"caption": "busy café", "snr_db": 3.0}
    return read_scene({"global": overall, "sentences": rows})


def user_leaves(scene):
    document = msgspec.to_builtins(msgspec.structs.replace(scene, sources={}))
    return {path: value for path, value in leaves(document) if path not in scene.sources}


@settings(max_examples=60, deadline=None)
@given(scenes(), st.integers(0, 3), st.booleans())
def test_the_rules_leave_what_the_user_wrote(scene, seed, lively):
    planned = plan_scene(scene, seed=seed, lively=lively)
    mine = user_leaves(scene)
    assert user_leaves(planned) == mine
    assert plan_scene(scene, seed=seed, lively=lively) == planned
    assert not open_slots(planned, ("tone", "pace", "volume"))


@settings(max_examples=80, deadline=None)
@given(scenes(), st.data())
def test_no_reply_of_a_model_changes_what_the_user_wrote(scene, data):
    paths = [f"sentences[{i}].{name}" for i in range(len(scene.sentences)) for name in DIMENSIONS]
    chosen = data.draw(st.lists(st.sampled_from([*paths, "global.emotion.tone"]), unique=True))
    planned = read_plan(scene, plan_reply(scene, dict.fromkeys(chosen, "changed by the model")))
    assert user_leaves(planned) == user_leaves(scene)
    filled = {path for path, source in planned.sources.items() if source == "plan"}
    assert filled <= set(chosen)


@settings(max_examples=60, deadline=None)
@given(scenes())
def test_manners_are_within_their_limits(scene):
    for manner in resolve_manners(plan_scene(scene)).manners:
        for name, (low, high) in LIMITS.items():
            assert low <= getattr(manner, name) <= high


@pytest.mark.parametrize(
    ("caption", "add", "fixed"),
    [
        ("slow", {"rate": -0.22}, {}),
        ("very slow", {"rate": -0.308}, {}),
        ("not slow", {"rate": 0.11}, {}),
        ("-3 dB", {}, {"gain_db": -3.0}),
        ("120 wpm", {}, {"rate": 120 / 170}),
        ("+2 st, 1.2x", {}, {"pitch_st": 2.0, "rate": 1.2}),
        ("", {}, {}),
    ],
)
def test_a_caption_is_read(caption, add, fixed):
    assert read_caption(caption)[:2] == (add, fixed)


def one(**captions):
    return read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [{"speaker": "A", "text": "Yes.", **captions}]})  # fmt: skip


def test_numbers_win_over_words_and_unknown_words_are_said():
    found = resolve_manners(one(volume="loud, -6 dB", tone="mauve"))
    assert found.manners[0].gain_db == -6.0
    assert found.warnings == ["sentences[0].tone: 'mauve' has no word that is known to change the voice"]  # fmt: skip
    assert resolve_manners(one()).manners == [Manner()]


def test_the_arc_raises_pitch_rate_and_loudness_together():
    lines = [{"speaker": "A", "text": "Yes."}] * 5
    arc = [{"at": 0.0, "arousal": 0.0}, {"at": 1.0, "arousal": 1.0}]
    scene = read_scene({"global": {"speakers": [{"id": "A"}], "emotion": {"arc": arc}}, "sentences": lines})  # fmt: skip
    manners = resolve_manners(scene).manners
    for name in ("pitch_st", "rate", "gain_db"):
        values = [getattr(one, name) for one in manners]
        assert values == sorted(values)
        assert values[0] < values[-1]
    assert manners[2] == Manner()  # half way is the voice's own


def test_a_play_a_chat_and_prose_become_scripts():
    play = "First Citizen:\nBefore we proceed any further,\nhear me speak.\n\nAll:\nSpeak, speak.\n"
    assert [(s.speaker, s.text) for s in draft_scene(play).sentences] == [
        ("First Citizen", "Before we proceed any further, hear me speak."),
        ("All", "Speak, speak."),
    ]
    prose = draft_scene("Dr. Smith came in. He said: nothing [at all! Then he left.")
    assert {s.speaker for s in prose.sentences} == {"Narrator"}
    assert next(s.text for s in prose.sentences) == "Dr. Smith came in."


PLAY = """[Enter ANN and BOB.]

Ann (angrily): Go away! (She turns.) Now. I *really* mean it (you know that).
*She sits down.*
Please.

The door opens slowly, and it is cold.

Bob:

[aside, to the audience] *sighs* (beat) Hm [pause 0.4] well. (quietly) Yes.
  (He nods.)

ANN: (nods)
Ann: *You* did it.
"""


def test_stage_directions_are_not_spoken_and_narration_is_the_narrators():
    assert [(s.speaker, s.text, s.tone) for s in draft_scene(PLAY).sentences] == [
        ("Ann", "Go away!", "angrily"),
        ("Ann", "Now.", "angrily"),
        ("Ann", "I *really* mean it (you know that).", "angrily"),
        ("Ann", "Please.", "angrily"),
        ("Narrator", "The door opens slowly, and it is cold.", ""),
        ("Bob", "Hm [pause 0.4] well.", ""),
        ("Bob", "Yes.", "quietly"),
        ("Ann", "*You* did it.", ""),
    ]
    # Prose has no directions: what stands in brackets is read.
    prose = draft_scene("It rained. (It always did.) He left.")
    assert "always did" in " ".join(s.text for s in prose.sentences)


def test_brackets_and_italics_inside_a_sentence_are_spoken():
    play = "Ann: Our score is in [1]. Look: x[0] is first. *never* mind.\nBob: *sighs* I know. [aside] Hm."
    draft = drafted(play)
    assert [(s.speaker, s.text) for s in draft.scene.sentences] == [
        ("Ann", "Our score is in (1)."),
        ("Ann", "Look: x(0) is first. *never* mind."),
        ("Bob", "I know."),
        ("Bob", "Hm."),
    ]
    assert draft.directions == ["*sighs*", "[aside]"]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        (  # a letter and a song in italics
            "Ann: I read it.\n_My dearest Ann, I love you._\nAnn: *Oh, Clementine,*\n*you are lost.*",
            [
                ("Ann", "I read it. _My dearest Ann, I love you._"),
                ("Ann", "*Oh, Clementine,* *you are lost.*"),
            ],
        ),
        (  # a heading with a colon makes no play of a novel
            "Chapter 1: The Start\n\nIt was late. (He was gone.)\n\n(She knew.)\n\nHe left.",
            [("Narrator", text) for text in ("Chapter 1: The Start It was late.", "(He was gone.)")]
            + [("Narrator", "(She knew.)"), ("Narrator", "He left.")],
        ),
        (  # names in capitals on lines of their own; a speech of two stanzas
            "ACT I\n\nHAMLET.\nTo be.\n\nOr not.\n\nGHOST\nSwear.\n\nHAMLET.\nRest!",
            [
                ("Narrator", "ACT I"),
                ("HAMLET", "To be."),
                ("HAMLET", "Or not."),
                ("GHOST", "Swear."),
                ("HAMLET", "Rest!"),
            ],
        ),
        (
            'I met Mr. Smith at St. James. "He left." Then he came.',
            [
                ("Narrator", "I met Mr. Smith at St. James."),
                ("Narrator", '"He left."'),
                ("Narrator", "Then he came."),
            ],
        ),
    ],
)
def test_who_says_what_in_letters_novels_and_plays(text, spoken):
    assert [(s.speaker, s.text) for s in draft_scene(text).sentences] == spoken


def test_an_adverb_is_read_as_its_adjective():
    for adverb, adjective in (("angrily", "angry"), ("sadly", "sad"), ("gently", "gentle")):
        assert read_caption(adverb).add == read_caption(adjective).add != {}
    assert read_caption("highly excited").add == read_caption("very excited").add


def test_a_lively_scene_overlaps_and_the_other_does_not():
    text = "\n".join(f"{'AB'[i % 2]}: I have been waiting here for you the whole morning, number {i}." for i in range(30))  # fmt: skip
    kinds = {
        type(s.relation).__name__ for s in plan_scene(draft_scene(text), lively=True).sentences
    }
    assert {"After", "Overlap"} <= kinds
    assert {type(s.relation).__name__ for s in plan_scene(draft_scene(text)).sentences} == {"After"}


def test_an_environment_gets_its_numbers_unless_the_user_gave_them():
    table = {"speakers": [{"id": "A"}], "environment": {"caption": "a noisy café", "reverb_s": 0.1}}
    planned = plan_scene(read_scene({"global": table, "sentences": [{"speaker": "A", "text": "Yes."}]}))  # fmt: skip
    assert planned.overall.environment.reverb_s == 0.1
    assert planned.overall.environment.snr_db == 8.0
    assert planned.sources["global.environment.snr_db"] == "plan"


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("sure, here is the plan", "expected 'path = "),
        ('sentences[9].tone = "sad"', "expected a caption of a sentence"),
        ('sentences[0].text = "No."', "expected a caption of a sentence"),
        ("sentences[0].tone = sad", "in JSON"),
        ("sentences[0].tone = 3", "expected a phrase, once"),
        ('sentences[0].tone = "a"\nsentences[0].tone = "b"', "expected a phrase, once"),
        ("global.emotion.arc[0].at = NaN", "in JSON"),
        ('sentences[0].tone = "' + "x" * 300 + '"', "expected a phrase"),
    ],
)
def test_a_reply_that_is_no_plan_is_refused_with_its_line(reply, says):
    with pytest.raises(ArgumentError, match=says):
        read_plan(one(), reply)


def test_a_model_is_asked_twice_and_then_the_rules_plan():
    scene = one()
    good = 'sentences[0].tone = "sad"'
    for replies, by, tone in (([good], "model", "sad"), (["no", good], "model again", "sad"), (["no", "no"], "rules", "excited")):  # fmt: skip
        lm = ScriptedLM(replies)
        planned = anyio.run(plan_with_lm, scene, lm)
        assert (planned.by, planned.scene.sentences[0].tone) == (by, tone)
        assert len(planned.problems) == {"model": 0, "model again": 1, "rules": 2}[by]
        assert len(lm.calls) == len(replies)


def test_the_prompt_lists_what_is_open_and_no_more():
    prompt = plan_prompt(one(pace="slow"), "End sad.", ("tone", "pace"))
    assert "End sad." in prompt
    assert 'sentences[0].pace = "slow"' in prompt
    assert "sentences[0].tone = <blank>" in prompt
    assert "pace = <blank>" not in prompt
    assert math.isfinite(len(prompt))


@pytest.mark.parametrize(
    ("caption", "fixed"),
    [
        ("20 % faster", {"rate": 1.2}),
        ("25 % slower", {"rate": 0.75}),
        ("+10 %", {"rate": 1.1}),
        ("80 %", {"rate": 0.8}),
        ("2 times slower", {"rate": 0.5}),
        ("17 wpm faster", {"rate": 1.1}),
        ("3 dB softer", {"gain_db": -3.0}),
        ("2 semitones lower", {"pitch_st": -2.0}),
        ("100 % louder", {"gain_db": 6.0206}),
        ("50 % lower", {"pitch_st": -12.0}),
    ],
)
def test_a_number_goes_where_its_words_say(caption, fixed):
    reading = read_caption(caption)
    assert reading.fixed == pytest.approx(fixed)
    assert not reading.add
    assert not reading.unknown


def test_names_in_any_alphabet_are_speakers():
    scene = draft_scene("Élodie: Bonjour. Écoute!\nÖzil: Hallo.\nÉlodie: Ça va?")
    assert [one.speaker for one in scene.sentences] == ["Élodie", "Élodie", "Özil", "Élodie"]


def test_a_break_inside_a_text_is_no_line_of_the_prompt():
    scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [{"speaker": "A", "text": "One\u2028two\x85three."}]})  # fmt: skip
    (line,) = (one for one in plan_prompt(scene).split("\n") if ".text = " in one)
    assert line == 'sentences[0].text = "One\u2028two\x85three."'


def test_a_plan_of_a_long_scene_is_read_to_its_end():
    scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [{"speaker": "A", "text": "Yes."}] * 900})  # fmt: skip
    reply = plan_reply(scene, {f"sentences[{i}].{one}": "soft" for i in range(900) for one in DIMENSIONS})  # fmt: skip
    assert read_plan(scene, reply).sentences[-1].intent == "soft"


DEEP = "sentences[0].tone = " + "[" * 2000


def test_a_reply_of_a_thousand_brackets_is_no_plan_and_the_rules_plan():
    scene = one()
    with pytest.raises(ArgumentError, match=r"^text: line 1 .*in JSON"):
        read_plan(scene, DEEP)
    planned = anyio.run(plan_with_lm, scene, ScriptedLM(lambda *_: DEEP))
    assert planned.by == "rules"
    assert len(planned.problems) == 2


@pytest.mark.parametrize("sign", ["-", "\u2010", "\u2011", "\u2012", "–", "—", "−", "\ufe63", "－", "minus ", "Minus "])  # fmt: skip
def test_every_minus_is_a_minus(sign):
    assert read_caption(f"{sign}6 dB").fixed == {"gain_db": -6.0}
    assert read_caption(f"loud, {sign}6 dB").fixed == {"gain_db": -6.0}
    assert resolve_manners(one(volume=f"{sign}6 dB")).manners[0].gain_db == -6.0


def test_a_plus_is_a_plus_and_a_dash_between_words_is_none():
    assert read_caption("plus 2 semitones").fixed == {"pitch_st": 2.0}
    assert read_caption("- 3 dB").fixed == {"gain_db": -3.0}
    assert read_caption("3 dB softer — very slow").fixed == {"gain_db": -3.0}
    assert read_caption("slow—fast").add == pytest.approx({"rate": 0.03})


@pytest.mark.parametrize(
    ("caption", "dimension", "fixed"),
    [
        ("2 times louder", "", {"gain_db": 6.0206}),
        ("2x quieter", "", {"gain_db": -6.0206}),
        ("1.5 times as loud", "", {"gain_db": 3.521825}),
        ("2x higher", "", {"pitch_st": 12.0}),
        ("2x deeper", "tone", {"pitch_st": -12.0}),
        ("2 times slower", "volume", {"rate": 0.5}),
        ("1,5x", "", {"rate": 1.5}),
        ("1,5x", "pace", {"rate": 1.5}),
        ("50 %", "volume", {"gain_db": -6.0206}),
        ("2x", "volume", {"gain_db": 6.0206}),
        ("50 % lower", "volume", {"gain_db": -6.0206}),
        ("100 % up", "volume", {"gain_db": 6.0206}),
        ("20 % higher", "pace", {"rate": 1.2}),
        ("50 %", "intonation", {"range": 0.5}),
        ("50 %", "tone", {"rate": 0.5}),
        ("-2,5 dB", "volume", {"gain_db": -2.5}),
    ],
)
def test_a_factor_changes_what_its_words_or_its_dimension_say(caption, dimension, fixed):
    assert read_caption(caption, dimension).fixed == pytest.approx(fixed)


def test_a_factor_of_a_volume_leaves_the_rate_alone():
    half, double = (resolve_manners(one(volume=text)).manners[0] for text in ("50 %", "2x"))
    assert (half.rate, double.rate) == (1.0, 1.0)
    assert half.gain_db < 0 < double.gain_db


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Ann: Well [pause] no.\nBen: Yes.", ["Well [pause 0.4] no.", "Yes."]),
        ("Ann: Well [Pause] no.\nBen: Yes.", ["Well [pause 0.4] no.", "Yes."]),
        ("Ann: Well. [pause for effect] No.\nBen: Yes.", ["Well.", "No.", "Yes."]),
        ("Ann: Well. [pause 99] No.\nBen: Yes.", ["Well.", "No.", "Yes."]),
        ("Ann: Well [pause 1.5] no.\nBen: Yes.", ["Well [pause 1.5] no.", "Yes."]),
        ("It was late [pause] and dark.", ["It was late [pause 0.4] and dark."]),
    ],
)
def test_a_pause_in_a_play_is_a_mark_or_a_direction(text, spoken):
    assert [one.text for one in draft_scene(text).sentences] == spoken


@pytest.mark.parametrize(
    "caption",
    [
        "not particularly loud",
        "isn't loud",
        "no longer loud",
        "without shouting",
        "not calm or loud",
    ],
)
def test_a_negation_holds_until_the_clause_ends(caption):
    assert read_caption(caption).add["gain_db"] <= -1.0


@pytest.mark.parametrize(
    ("caption", "sign"),
    [
        ("without hurry in a calm voice", -1), ("no hesitation speaks loudly", 1),
        ("as if nothing happened speaks calmly", -1), ("with no fear shouting", 1),
        ("with less energy speaks softly", -1), ("not sure of himself speaks quietly", -1),
        ("not only loud but fast", 1),
    ],
)  # fmt: skip
def test_a_negation_is_of_the_next_word_alone(caption, sign):
    assert sign * read_caption(caption).add["gain_db"] >= 1.5


def test_what_follows_a_clause_is_not_negated():
    assert read_caption("not angry, loud").add["gain_db"] > 0
    assert read_caption("not angry but loud").add["gain_db"] > 0
    assert read_caption("half as fast").fixed == {"rate": 0.5}


def test_low_is_what_its_dimension_says():
    assert read_caption("low", "volume").add["gain_db"] < 0
    assert read_caption("low", "pace").add == read_caption("slow").add
    assert read_caption("a low voice").add == {"pitch_st": -3.0}
    with pytest.raises(UserError, match="dimension: got 'loudness', expected"):
        read_caption("low", "loudness")
