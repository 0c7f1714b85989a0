"""Scripts of long speech: every mistake has its line, and both written forms come back the same."""

import json
import math

import msgspec
import pytest
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.models.long_speech import (
    drop_dimensions,
    parse_scene_text,
    planned_captions,
    read_scene,
    scene_problems,
    scene_schema,
    scene_text,
    scene_warnings,
    write_scene,
)
from burnish.models.long_speech.scene import Scene, leaves, spoken_text


def script(*sentences, sources=None, **overall):
    """Two speakers, A and B."""
    lines = sentences or ({"speaker": "A", "text": "Hello there."},)
    overall = {"speakers": [{"id": "A"}, {"id": "B"}], **overall}
    return {"global": overall, "sentences": list(lines), "sources": sources or {}}


def said(speaker="B", text="Well, no.", **rest):
    return {"speaker": speaker, "text": text, **rest}


A = said("A", "Hello there.")

MISTAKES = {
    "unknown speaker": (script(said("C")), "sentences[0].speaker: got 'C'"),
    "empty text": (script(said(text="  ")), "sentences[0].text: got ' '"),
    "no sentence": ({**script(), "sentences": []}, "sentences: got none"),
    "later ref": (
        script(A, said(relation={"type": "with", "ref": 1})),
        "sentences[1].relation.ref: got 1, expected an earlier sentence than 1",
    ),
    "at beyond 1": (
        script(A, said(relation={"type": "interrupt", "at": 1.5})),
        "sentences[1].relation.at: got 1.5, expected a number from 0 to 1",
    ),
    "negative overlap": (
        script(A, said(relation={"type": "overlap", "seconds": -1})),
        "sentences[1].relation.seconds: got -1, expected a number from 0 to 86400",
    ),
    "first interrupts": (
        script(said(relation={"type": "interrupt", "at": 0.5})),
        "sentences[0].relation.type: got interrupt, expected after",
    ),
    "oneself": (
        script(A, said("A", relation={"type": "overlap", "seconds": 1})),
        "'A' cannot talk over himself",
    ),
    "unsorted arc": (
        script(emotion={"arc": [{"at": 0.5}, {"at": 0.1}]}),
        "global.emotion.arc[1].at: got 0.1 after 0.5",
    ),
    "empty arc": (script(emotion={"arc": []}), "global.emotion.arc: got none"),
    "two voices": (
        script(speakers=[{"id": "A", "voice": "old"}, {"id": "A", "voice": "young"}]),
        "global.speakers[1].id: 'A' is there twice with another voice",
    ),
    "open bracket": (script(said(text="Oh [laugh")), "a bracket is not closed"),
    "pause of words": (script(said(text="Oh [pause long]")), "a mark such as [laugh]"),
    "word beyond": (
        script(said(tokens=[{"word": 2}])),
        "sentences[0].tokens[0].word: got 2, expected below 2",
    ),
    "misspelt key": (script(said(tonee="x")), "Did you mean 'tone'?"),
    "misspelt relation": (
        script(A, said(relation={"type": "overlp", "seconds": 1})),
        "Did you mean 'overlap'?",
    ),
    "NaN": (script(environment={"snr_db": math.nan}), "environment.snr_db: got nan"),
    "endless event": (
        script(events=[{"caption": "rain", "at": 0, "duration": math.inf}]),
        "events[0].duration: got inf",
    ),
    "path of nothing": (script(sources={"sentences[3].tone": "plan"}), "no leaf of the scene"),
    "source of nobody": (script(sources={"sentences[0].tone": "me"}), "got 'me', expected "),
    "other version": ({**script(), "version": 2}, "version: got 2, expected 1"),
}


@pytest.mark.parametrize(("document", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_one_line_with_its_path(document, line):
    (found,) = scene_problems(document)
    assert line in found
    assert "\n" not in found
    with pytest.raises(UserError, match=r"^document: ") as refusal:
        read_scene(document)
    assert found in str(refusal.value)


def test_all_mistakes_are_told_at_once():
    document = script(said("C", tone=3), {"speaker": "A"}, format=5)
    assert scene_problems(document) == [
        "global.format: got 5, expected a text",
        "sentences[0].tone: got 3, expected a text",
        "sentences[1].text: missing",
    ]
    with pytest.raises(UserError, match=r"^document: 3 problems: "):
        read_scene(document)


def test_marks_are_not_spoken_and_unknown_ones_are_told():
    assert spoken_text("Oh [pause 0.4] my [laugh].") == "Oh my ."
    scene = read_scene(script(said(text="Oh [gasp] no [laugh]", marks=["[hum]"])))
    assert [line.split("'")[1] for line in scene_warnings(scene)] == ["gasp", "hum"]


CAPTION = st.text(max_size=12)
FIELDS = ("tone", "intonation", "pace", "volume", "intent", "background")
SHARES = st.floats(0, 1)


@st.composite
def documents(draw):
    lines = []
    for place in range(draw(st.integers(1, 4))):
        relation = draw(
            st.sampled_from(
                [
                    {"type": "after", "gap": draw(SHARES)},
                    {"type": "overlap", "seconds": draw(SHARES)},
                    {"type": "interrupt", "at": draw(SHARES)},
                    {"type": "with", "ref": max(place - 1, 0), "offset": draw(SHARES)},
                ]
            )
        )
        captions = draw(st.dictionaries(st.sampled_from(FIELDS), CAPTION))
        words = {"tokens": [{"word": 0, "stress": draw(CAPTION), "pitch_shift_st": 1.5}]}
        extra = words if draw(st.booleans()) else {}
        if place:
            extra["relation"] = relation
        lines.append(said("ABCD"[place], draw(CAPTION).replace("[", "").replace("]", "") + "x"))
        lines[-1] |= captions | extra
    arc = [
        {"at": at, "caption": draw(CAPTION)} for at in sorted(draw(st.lists(SHARES, max_size=3)))
    ]
    emotion = {"tone": draw(CAPTION)} | ({"arc": arc} if arc else {})
    speakers = [{"id": name} for name in "ABCD"]
    document = script(
        *lines, emotion=emotion, synopsis=draw(CAPTION), style_tags=["a", ""], speakers=speakers
    )
    paths = [path for path, _ in leaves(read_scene(document))]
    planned = draw(st.lists(st.sampled_from(paths), unique=True, max_size=6))
    chosen = [path for path in planned if path != "version"]
    return document | {
        "sources": {path: draw(st.sampled_from(["plan", "default", "user"])) for path in chosen}
    }


@given(documents())
def test_both_written_forms_give_the_same_scene(document):
    scene = read_scene(document)
    assert read_scene(write_scene(scene)) == scene
    assert read_scene(json.loads(write_scene(scene))) == scene
    text = scene_text(scene)
    assert parse_scene_text(text) == scene
    assert scene_text(parse_scene_text(text)) == text


@given(documents(), st.data())
def test_dropout_blanks_planned_captions_and_nothing_of_the_user(document, data):
    scene = read_scene(document)
    names = planned_captions(scene)
    u = [data.draw(st.floats(0, 0.999)) for _ in names]
    assert drop_dimensions(scene, u, 0.0) == scene
    bare = drop_dimensions(scene, u, 1.0)
    before, after = (dict(leaves(msgspec.structs.replace(s, sources={}))) for s in (scene, bare))
    assert {path: value for path, value in after.items() if path not in names} == {
        path: value for path, value in before.items() if path not in names
    }
    assert all(after[name] == "" for name in names)
    assert planned_captions(bare) == []


def test_text_shows_the_planner_what_is_fixed_and_what_is_blank():
    document = script(
        said("A", "Yes.", tone="tired", pace="slow"), sources={"sentences[0].tone": "plan"}
    )
    text = scene_text(read_scene(document))
    fixed, planned = text.split("[think]\n")
    assert 'sentences[0].pace = "slow"' in fixed
    assert 'sentences[0].tone = "tired"' in planned
    assert "sentences[0].volume = <blank>" in planned


GOOD = '[instruct]\nglobal.speakers[0].id = "A"\nsentences[0].speaker = "A"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('sentences[0].text = "x"', "line 1 is .*expected .instruct. first"),
        ("[instrct]", "line 1 is"),
        (GOOD + "nonsense", "line 4 is 'nonsense', expected 'path = value'"),
        (GOOD + "sentences[0].text = open", "line 4 .*in JSON"),
        (GOOD + 'sentences[0] = {"text": "x"}', "line 4 .*a text or a number"),
        (GOOD + 'sentences[0].speaker = "B"', "line 4 .*once"),
        (GOOD + 'sentences[0].speaker.x = "B"', "both a value and a part"),
        (GOOD + 'sentences[2].text = "B"', "sentences: got "),
        (GOOD, r"sentences\[0\].text: missing"),
        (GOOD + 'sentences[0].text = "x"\nsentences[0].tne = "y"', "Did you mean 'tone'"),
    ],
)
def test_text_that_a_model_got_wrong_is_refused_with_its_line(text, line):
    with pytest.raises(UserError, match=rf"^text: .*{line}") as refusal:
        parse_scene_text(text)
    assert "\n" not in str(refusal.value)


def test_the_schema_describes_what_is_read():
    schema = scene_schema()
    parts = schema["$defs"]
    assert parts["Scene"]["required"] == ["global", "sentences"]
    assert parts["Interrupt"]["properties"]["at"]["maximum"] == 1
    assert {one["$ref"] for one in parts["Sentence"]["properties"]["relation"]["anyOf"]} == {
        f"#/$defs/{name}" for name in ("After", "Overlap", "Interrupt", "With")
    }
    assert set(parts["Scene"]["properties"]) == set(Scene.__struct_encode_fields__)


HALF = "\ud800"


def test_the_first_sentence_overlaps_nothing_not_even_by_0():
    first = said("A", relation={"type": "overlap", "seconds": 0})
    assert scene_problems(script(first)) == [
        "sentences[0].relation.type: got overlap, expected after: no sentence stands before the first"
    ]
    assert scene_problems(script(A, first | {"speaker": "A"})) == []


@pytest.mark.parametrize("text", ["[" * 200_000, '{"global":' * 5000])
def test_json_that_is_nested_too_deep_is_one_line(text):
    with pytest.raises(UserError, match=r"^document: .*nested too deep"):
        read_scene(text)
