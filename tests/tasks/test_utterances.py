"""Recordings with texts: rows whose sound is no file are counted, and stop nothing."""

import json

import pytest

from burnish.media import write_sound
from burnish.tasks.sounds import UtteranceCorpus


@pytest.mark.parametrize(
    "sound",
    [
        "A" * 6000, {"path": "A" * 6000}, "A/" * 3000, "a\0b", "none.wav", ".", "a.wav/b",
        ["a.wav"], 7,
    ],
)  # fmt: skip
def test_a_sound_that_is_no_path_is_left_out_and_counted(sound, tmp_path):
    write_sound(tmp_path / "a.wav", [0.1, -0.1] * 200, 8000)
    rows = [{"audio": one, "text": "hello"} for one in ("a.wav", sound, "a.wav")]
    (tmp_path / "clips.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = UtteranceCorpus((str(tmp_path / "clips.jsonl"),), 8000)
    assert corpus.digest
    assert [clip.name for clip in corpus.clips()] == ["clips.jsonl:1", "clips.jsonl:3"]
    assert corpus.note.startswith("left out 1 of 3 rows: 1 unreadable (clips.jsonl:2: ")
