"""Rows that `burnish variance` cannot measure on, and letters that cannot be the mask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.api.variance import read_rows
from burnish.errors import UserError
from burnish.lm import load_model
from burnish.lm.diffusion.convert import choose_mask
from burnish.lm.folder import LoadedModel


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("diffusion:tiny", device="cpu")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            json.dumps({"input_ids": [1, 99_999]}),
            "input_ids holds 99999; expected token ids from 0",
        ),
        (json.dumps({"input_ids": [1, -1]}), "input_ids holds -1"),
        (json.dumps({"input_ids": "ab"}), "input_ids holds 'ab'"),
        (json.dumps({"input_ids": [1, 2], "prompt_length": 2}), "prompt_length is 2 of 2 tokens"),
        (json.dumps({"prompt": "a", "answer": ""}), "'answer' is empty; expected the text of"),
        ('{"text": "a \\ud800 b"}', r"\\ud800 is half of a surrogate pair"),
        ('{"text": "a", "b"', "not JSON"),
        ('{"text": null}', "'text' is null; expected a text"),
        ('{"text": ""}', "'text' is empty; expected a text"),
        ('{"words": "a"}', "the row has words; expected input_ids"),
    ],
)
def test_rows_that_cannot_be_measured_are_named(
    loaded: LoadedModel, tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(UserError, match=f"rows.jsonl:2: .*{words}"):
        read_rows(str(file), loaded, 4)


def test_a_letter_cannot_be_the_mask() -> None:
    tokenizer = load_model("tiny", device="cpu").tokenizer
    with pytest.raises(UserError, match="'E' is no unused special token"):
        choose_mask(tokenizer, tokenizer.vocab_size, "E")
