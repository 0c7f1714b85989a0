"""The neural engine of a folder: drawn by the seed alone, exact in chunks, one line for every fault."""

import json
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the engine's models need transformers")
pytest.importorskip("soundfile", reason="writing sounds needs soundfile")
pytest.importorskip("soxr", reason="a cast needs soxr")

from burnish.cli.entry import run
from burnish.errors import ModelError, UserError
from burnish.media import read_sound
from burnish.models.audio_tokenizer import (
    new_generator,
    new_tokenizer,
    open_speech_folder,
    save_speech_folder,
)
from burnish.models.audio_tokenizer.spelling import ALPHABET
from burnish.models.long_speech import Capabilities, Line, Manner, read_scene
from burnish.models.long_speech.scene import Speaker
from burnish.speech import cast_scene, render_scene
from burnish.speech.cast import SAMPLE_RATE, open_engine
from burnish.speech.engines import PART, LatentEngine, parts_of

FRAME = 320
"""Samples of a latent."""


def models(bottleneck="norm+noise", end=1.0, **changes):
    """A tokenizer and a generator that ends as soon as it may (`end` > 0), or never."""
    tokenizer = new_tokenizer(hidden_size=8, latent_size=4, bottleneck=bottleneck)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "latent_size": 4}
    sizes |= {"head_size": 8, "head_layers": 1, "characters_a_patch": 0.5}
    names = {"vocab_size": len(ALPHABET) + 1, "alphabet": ALPHABET, "voices": ["joe", "heart"]}
    generator = new_generator(**{**sizes, **names, **changes})
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        # A head begins at velocity 0: neither text nor voice would be heard.
        for weight in generator.parameters():
            weight.normal_(0, 0.4, generator=draw)
        generator.end.weight.zero_()
        generator.end.bias.fill_(end)
    return tokenizer, generator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_speech_folder(tmp_path_factory.mktemp("voices") / "speech", *models())


def say(engine, text="Oh no, not again.", voice="joe", seed=7, place=0) -> np.ndarray:
    line = Line(text, Speaker(id="A"), place, seed, Manner(), voice)
    return np.asarray(engine.speak(line).samples)


def scene(*speakers, text="Well, 2 of us.", **sentence):
    people = speakers or ({"id": "A", "gender": "female"}, {"id": "B", "gender": "male"})
    rows = [{"speaker": one["id"], "text": text, **sentence} for one in people]
    return read_scene({"global": {"speakers": list(people)}, "sentences": rows})


def test_the_seed_alone_draws_a_line(folder):
    state = torch.get_rng_state()
    engine = LatentEngine(folder)
    first = say(engine)
    say(engine, "Something else.", "heart", seed=1)
    torch.manual_seed(1234)
    assert np.array_equal(first, say(engine))
    assert np.array_equal(first, say(LatentEngine(folder)))
    torch.set_rng_state(state)
    say(engine)
    assert torch.equal(torch.get_rng_state(), state)
    others = [say(engine, seed=8), say(engine, voice="heart"), say(engine, "Oh yes, once more")]
    assert all(len(one) == len(first) and not np.array_equal(first, one) for one in others)
    # 17 characters, half of one a patch, four times as fast: 9 patches of two latents.
    assert len(first) == 9 * 2 * FRAME
    assert np.abs(first).max() <= 1
    assert first.std() > 0


def test_a_folder_offers_what_it_can_do_and_nothing_else(folder):
    engine = open_engine(folder)
    assert engine.capabilities == Capabilities(voices=True)
    assert (engine.voices, engine.sample_rate) == (("joe", "heart"), 8000)
    said = engine.speak(Line("Yes.", Speaker(id="A"), 0, 1))
    assert (said.words, said.phonemes) == ((), ())
    # No voice: the first. A pitch or a rate changes nothing.
    changed = engine.speak(Line("Yes.", Speaker(id="A"), 0, 1, Manner(pitch_st=3, rate=1.5), "joe"))
    assert torch.equal(said.samples, changed.samples)
    assert len(say(engine, "...")) == 0


def test_long_text_is_said_in_parts_of_bounded_length(folder):
    text = "a sentence of some length, as people say. " * 8 + "x" * 150
    parts = parts_of(text, PART)
    assert max(map(len, parts)) <= PART
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert parts[0] == "a sentence of some length, as people say. a sentence of some length, as people say."  # fmt: skip
    assert parts_of("", PART) == []
    patches = sum(-(-len(part) // 2) for part in parts)
    assert len(say(LatentEngine(folder), text)) == patches * 2 * FRAME


@pytest.mark.parametrize("seconds", [0.3, 600.0])
def test_any_chunk_and_the_same_seed_give_the_same_file(folder, tmp_path, seconds):
    asked = scene(tone="furious", pace="much faster")
    whole = render_scene(asked, tmp_path / "a.wav", engine=folder, seed=1)
    cut = render_scene(asked, tmp_path / "b.wav", engine=str(folder), seed=1, chunk_s=seconds)
    assert cut.path.read_bytes() == whole.path.read_bytes()
    other = render_scene(asked, tmp_path / "c.wav", engine=folder, seed=2)
    assert other.path.read_bytes() != whole.path.read_bytes()
    assert read_sound(whole.path).rate == SAMPLE_RATE
    # "well, two of us." is 16 characters: 8 patches of 0.08 s.
    assert whole.timeline[0]["end"] - whole.timeline[0]["start"] == pytest.approx(0.64, abs=1e-3)
    ignored = [one.split("cannot ")[1].split(":")[0] for one in whole.warnings if "cannot" in one]
    assert "change rate" in ignored
    assert any(one.startswith("express emotion") for one in ignored)
    assert whole.voices == {"A": f"{folder} heart", "B": f"{folder} joe"}


def test_lines_that_other_weights_or_another_config_spoke_are_not_kept(folder, tmp_path):
    tokenizer, generator = open_speech_folder(folder)
    with torch.no_grad():
        generator.start.add_(1)
    other = save_speech_folder(tmp_path / "other", tokenizer, generator)
    shutil.copytree(folder, tmp_path / "paced")
    config = tmp_path / "paced/generator/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"characters_a_patch": 0.25}))
    places = (folder, folder, other, tmp_path / "paced")
    versions = [cast_scene(scene(), one).version for one in places]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


def test_a_line_that_never_ends_is_a_failure(tmp_path):
    engine = LatentEngine(save_speech_folder(tmp_path, *models(end=-1.0)))
    with pytest.raises(
        ModelError, match=r"sentences\[3\].*did not end 'no!' within 1\.8 s, 3 times"
    ):
        say(engine, "No!", place=3)


def test_text_and_voices_of_a_scene_are_checked_before_anything_is_spoken(folder):
    with pytest.raises(UserError, match=r"sentences\[0\]"):
        cast_scene(scene(text="Ça va? 你好"), folder)
    with pytest.raises(UserError, match="'m3' is one of engine 'espeak'"):
        cast_scene(scene({"id": "A", "voice": "m3"}), folder)


def test_folders_that_hold_no_voices_are_one_line(folder, tmp_path):
    tokenizer, generator = models()
    generator.save_pretrained(tmp_path / "half" / "generator")
    tokenizer.save_pretrained(tmp_path / "swapped" / "generator")
    generator.save_pretrained(tmp_path / "swapped" / "tokenizer")
    for name, says in {
        "absent": "has no tokenizer/config.json",
        "half": "has no tokenizer/config.json",
        "swapped": "holds a model of type 'burnish-audio-generator'",
    }.items():
        with pytest.raises(UserError, match=says) as caught:
            open_engine(str(tmp_path / name))
        assert "\n" not in str(caught.value)
    for wrong in ("espaek", "", 3):
        with pytest.raises(UserError, match="espeak, hibari, piper, tone, mixed, or a folder"):
            open_engine(wrong)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"latent_size": 6}, "another latent_size than the tokenizer"),
        ({"bottleneck": "plain"}, "another is_normalised"),
        ({"alphabet": "", "vocab_size": 9}, "no alphabet"),
    ],
)
def test_models_that_do_not_belong_together_are_not_written(tmp_path, changes, says):
    with pytest.raises(UserError, match=says):
        save_speech_folder(tmp_path / "speech", *models(**changes))
    assert not (tmp_path / "speech").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 70_000.0])
@pytest.mark.parametrize("place", [0, 1])
def test_weights_that_half_precision_cannot_hold_are_not_written(tmp_path, value, place):
    pair = models()
    with torch.no_grad():
        next(pair[place].parameters()).view(-1)[0] = value
    with pytest.raises(
        UserError, match=f"the {('tokenizer', 'generator')[place]}'s weight .* hold"
    ):
        save_speech_folder(tmp_path / "speech", *pair)
    assert not (tmp_path / "speech").exists()


def test_a_folder_comes_back_in_half_precision(folder):
    for saved, opened in zip(models(), open_speech_folder(folder), strict=True):
        for name, value in saved.state_dict().items():
            assert torch.equal(opened.state_dict()[name], value.half().float())


SCRIPT = """[[global.speakers]]
id = "A"
voice = "heart"
[[global.speakers]]
id = "B"
voice = "joe"
[[sentences]]
speaker = "A"
text = "Are you there?"
[[sentences]]
speaker = "B"
text = "Yes, at 7."
pace = "slow"
"""


def test_the_command_speaks_with_a_folder(folder, tmp_path, capsys):
    (tmp_path / "scene.toml").write_text(SCRIPT)
    speak = ["speak", str(tmp_path / "scene.toml"), "--json", "--engine"]
    for name in ("a", "b"):
        assert run([*speak, str(folder), "-o", str(tmp_path / f"{name}.wav")]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["voices"] == {"A": f"{folder} heart", "B": f"{folder} joe"}
    assert [one for one in told["warnings"] if "cannot change rate: 1 of 2" in one]
    assert read_sound(tmp_path / "a.wav").seconds == pytest.approx(told["seconds"])
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    assert run([*speak, str(tmp_path), "-o", str(tmp_path / "c.wav")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "c.wav").exists()
