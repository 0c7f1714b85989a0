"""`burnish speak` and `burnish speak-label`: files, one line for what is impossible, and resuming."""

import importlib.util
import json
import math
import os
import platform

import pytest

from burnish.media import read_sound, write_sound
from burnish.speech import read_script
from burnish.store.durable import WriterLock

pytest.importorskip("soundfile", reason="writing sounds needs soundfile")
PLAY = """Ann: Are you there? I have been waiting here since seven.
Ben: Yes!
Ann: Enough! Run, there is danger!
Cid: Peace... perhaps it is only the wind.
Ben: Mhm.
"""
HEAD = '[[global.speakers]]\nid = "A"\n[[global.speakers]]\nid = "B"\n[[sentences]]\nspeaker = "A"\ntext = "Well."\n'
SECOND = '[[sentences]]\nspeaker = "B"\ntext = "No."\n[sentences.relation]\n'
HOSTILE = {
    "no toml": ("[[", "no script"),
    "an open bracket": (HEAD.replace("Well.", "Well [pause"), "a bracket is not closed"),
    "a sound that is not there": ('background = "no.wav"\n' + HEAD, "no.wav"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_an_impossible_script_is_one_line(typed, tmp_path, name):
    text, says = HOSTILE[name]
    (tmp_path / "scene.toml").write_text(text)
    shown = typed("speak", tmp_path / "scene.toml", "-o", tmp_path / "a.wav", "--engine", "tone")
    assert shown.code == 2, shown.err
    assert says in shown.err
    # Progress is told only where the machine is slow.
    told = [one for one in shown.err.strip().splitlines() if not one.startswith("speaking")]
    assert len(told) == 1
    assert not (tmp_path / "a.wav").exists()


def test_a_play_is_planned_spoken_and_drawn(typed, tmp_path):
    pytest.importorskip("soxr", reason="a cast needs soxr")
    (tmp_path / "play.txt").write_text(PLAY)
    shown = typed(
        "speak", tmp_path / "play.txt", "-o", tmp_path / "play.wav", "--engine", "tone", "--lively", "--json",
        "--timeline", tmp_path / "play.svg", "--script-out", tmp_path / "play.json",
        "--alignment", tmp_path / "words.json", "--report",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    told = json.loads(shown.out.splitlines()[-1])
    assert told["planned_by"] == "rules"
    assert told["report"]["loudness"] > 0.99
    assert read_sound(tmp_path / "play.wav").seconds == pytest.approx(told["seconds"])
    assert (tmp_path / "play.svg").read_text().startswith("<svg")
    # The written script is a script: spoken again it gives the same sound.
    again = typed("speak", tmp_path / "play.json", "-o", tmp_path / "again.wav", "--engine", "tone")
    assert again.code == 0, again.err
    assert (tmp_path / "again.wav").read_bytes() == (tmp_path / "play.wav").read_bytes()
    assert json.loads((tmp_path / "words.json").read_text())[0]["words"][0]["w"] == "Are"


def test_a_plan_alone_is_told_as_json(typed, tmp_path):
    (tmp_path / "play.txt").write_text(PLAY)
    shown = typed("speak", tmp_path / "play.txt", "--script-out", tmp_path / "a.json", "--json")
    assert json.loads(shown.out)["planned_by"] == "rules"


def test_a_file_that_holds_something_else_is_not_written_over(typed, tmp_path):
    write_sound(tmp_path / "b.wav", [0.0] * 1600, 16000)
    for text in ("my notes\nof a year\n", '{"file": "b.wav"}\n', "a note"):
        (tmp_path / "notes.txt").write_text(text)
        shown = typed("speak-label", tmp_path / "b.wav", "-o", tmp_path / "notes.txt")
        assert shown.code == 3
        assert (tmp_path / "notes.txt").read_text() == text


LISTENERS = ("onnxruntime", "silero_vad", "resemblyzer", "espeakng_loader")


@pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in LISTENERS),
    reason=f"not installed: one of {', '.join(LISTENERS)}",
)
def test_recordings_are_labelled_once_and_silence_has_no_script(typed, tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    (tmp_path / "play.txt").write_text("Ann: The harbour is closed until Monday morning, they say.")
    assert typed("speak", tmp_path / "play.txt", "-o", folder / "a.wav").code == 0
    write_sound(folder / "b.wav", [0.01 * math.sin(i / 9) for i in range(16000)], 16000)
    (folder / "c.wav").write_bytes(b"RIFF no sound")
    shown = typed("speak-label", folder, "-o", tmp_path / "labels.jsonl")
    assert shown.code == 0, shown.err
    assert "nobody speaks" in shown.out
    assert "1 of 2 labelled" in shown.out
    assert "c.wav" in shown.err  # said, and the others are labelled all the same
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [row["speakers"] for row in rows] == [1, 0]
    assert rows[0]["scene"]["sentences"][0]["speaker"] == "S1"
    before = (tmp_path / "labels.jsonl").read_bytes()
    (tmp_path / "labels.jsonl").write_bytes(before + b'{"file":"cut o')
    assert typed("speak-label", folder, "-o", tmp_path / "labels.jsonl").code == 0
    assert (tmp_path / "labels.jsonl").read_bytes() == before


def test_a_folder_without_a_sound_is_one_line(typed, tmp_path):
    assert "has no sound" in typed("speak-label", tmp_path).err
    assert "is not there" in typed("speak-label", tmp_path / "absent").err


def test_a_sound_that_cannot_be_read_is_no_success(typed, tmp_path):
    (tmp_path / "c.wav").write_bytes(b"RIFF no sound")
    shown = typed("speak-label", tmp_path / "c.wav")
    assert shown.code == 2
    assert "no sound could be read" in shown.err


def test_a_render_that_is_stopped_says_how_it_goes_on(typed, tmp_path, monkeypatch):
    (tmp_path / "play.txt").write_text("Ann: Hello.\n\nBob: Good day.\n")

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("burnish.cli.speak._render", stopped)
    shown = typed("speak", tmp_path / "play.txt", "-o", tmp_path / "play.wav")
    assert shown.code == 130
    assert "the same command goes on" in shown.err


def test_a_plan_keeps_the_sounds_of_its_script(typed, tmp_path):
    write_sound(tmp_path / "bell.wav", [0.5] * 800, 8000)
    (tmp_path / "s.toml").write_text(
        'background = "bell.wav"\n[sounds]\nbell = "bell.wav"\n' + HEAD
    )
    other = tmp_path / "deep" / "s.json"
    assert typed("speak", tmp_path / "s.toml", "--script-out", other).code == 0
    again = read_script(other)
    assert again.sounds["bell"].resolve() == tmp_path / "bell.wav"
    assert again.background.resolve() == tmp_path / "bell.wav"
    (tmp_path / "linked").symlink_to(tmp_path / "deep", target_is_directory=True)
    assert typed("speak", other, "--script-out", tmp_path / "linked" / "t.json").code == 0
    assert read_script(tmp_path / "linked" / "t.json").sounds["bell"].is_file()
    before = (tmp_path / "bell.wav").read_bytes()
    for option, name, says in (
        ("--script-out", "s.txt", "expected a .json, or, without sounds of its own, a .txt"),
        ("--script-out", "t.toml", "expected a .json, or, without sounds of its own, a .txt"),
        ("-o", "bell.wav", "is read by the script; write another file"),
        ("--alignment", "s.toml", "is read by the script; write another file"),
    ):
        sound = ("-o", tmp_path / "c.wav") if option == "--alignment" else ()
        refused = typed("speak", tmp_path / "s.toml", *sound, option, tmp_path / name)
        assert refused.code == 2
        assert says in refused.err
    assert (tmp_path / "bell.wav").read_bytes() == before


def test_one_process_writes_a_sound_and_drafts_of_dead_ones_go(typed, tmp_path):
    (tmp_path / "play.txt").write_text(PLAY)
    words = ("speak", tmp_path / "play.txt", "--engine", "tone", "-o", tmp_path / "a.wav")
    parts = tmp_path / ".a.wav.parts"
    parts.mkdir()
    for host in (platform.node(), "elsewhere"):
        (tmp_path / f".a.wav-{host}-999999999.part").write_text("half")
    lock = WriterLock(parts / "writer.lock")
    busy = typed(*words)
    assert busy.code == 3
    assert f"a.wav is being written by pid {os.getpid()}" in busy.err
    lock.release()
    assert typed(*words).code == 0
    # What another machine writes on a shared disk is not told from here.
    left = sorted(one.name for one in tmp_path.iterdir())
    assert left == [".a.wav-elsewhere-999999999.part", "a.wav", "play.txt"]
