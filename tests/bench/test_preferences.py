"""Preference sets as pairs to train on: worked rows, and the real files where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.bench import preference_rows
from burnish.bench.items import Item, message, responses_of
from burnish.bench.loaders import load
from burnish.errors import UserError

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
ALPACA = {"instruction": "Say hi.", "output_1": "Hi.", "output_2": "Hello there.", "preference": 2}
ASKED = "Paragraph 1:\nShort.\n\nParagraph 2:\nLonger by far.\n\nYou must produce your answer"


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def talk(said, asked=ASKED):
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return {"id": 7, "messages": turns}


def test_alpaca_rows(tmp_path):
    rows = [ALPACA, ALPACA | {"preference": 1}, ALPACA | {"preference": 1.5}]
    items = load("alpaca_pairs", written(tmp_path / "train.jsonl", *rows))
    assert [item.best for item in items] == [(1,), (0,), (0, 1)]
    first, second, tie = preference_rows(items)
    assert (first["chosen"], first["rejected"]) == ("Hello there.", "Hi.")
    assert (second["chosen"], second["tie"], tie["tie"]) == ("Hi.", False, True)
    assert first["prompt"] == [{"role": "user", "content": "Say hi."}]
    assert first["meta"]["id"] == "train/1"
    with pytest.raises(UserError, match=r"'preference' is 3; expected 1, 2, 1.5"):
        load("alpaca_pairs", written(tmp_path / "bad.jsonl", ALPACA | {"preference": 3}))


def test_lamp_rows(tmp_path):
    rows = [talk('{"preference": "2"}'), {"id": 1, "messages": [{"role": "user", "content": "x"}]}]
    (item,) = load("lamp", written(tmp_path / "pairs.jsonl", *rows))
    (row,) = preference_rows([item])
    assert (row["chosen"], row["rejected"]) == ("Longer by far.", "Short.")
    with pytest.raises(UserError, match="no row of LAMP"):
        load("lamp", written(tmp_path / "bad.jsonl", talk("no idea")))
    with pytest.raises(UserError, match=r"expected a question about Paragraph 1"):
        load("lamp", written(tmp_path / "none.jsonl", rows[1]))


def test_every_better_response_meets_every_worse_one():
    item = Item("a", message("p"), responses_of("a", ["w", "x", "y", "z"]), (1, 3))
    rows = preference_rows([item, Item("b", message("p"), responses_of("b", ["x", "y"]))])
    got = [(row["chosen"], row["rejected"]) for row in rows]
    assert got == [("x", "w"), ("x", "y"), ("z", "w"), ("z", "y")]


SETS = [
    ("alpaca_pairs", "alpaca_pairs", 6444, 0), ("pandalm", "pandalm", 714, 68),
    ("llmbar", "llmbar", 290, 0), ("judgebench", "judgebench", 425, 0),
    ("rmbench", "rmbench", 3222, 0), ("lamp", "lamp_writing", 70, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "folder", "pairs", "ties"), SETS)
def test_real_sets(name, folder, pairs, ties):
    if not (DATA / folder).is_dir():
        pytest.skip(f"no {folder} here")
    rows = preference_rows(load(name, DATA / folder))
    assert (len(rows), sum(row["tie"] for row in rows)) == (pairs, ties)
    equal = sum(row["chosen"] == row["rejected"] and not row["tie"] for row in rows)
    assert equal == (name == "judgebench")  # one of its pairs has the same text twice
