"""Images of rows that `burnish judge` reads."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from burnish.bench.loaders.reading import read_items
from burnish.errors import UserError
from burnish.records import ImagePart, TextPart


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "red.png"
    pytest.importorskip("PIL.Image").new("RGB", (8, 8), "red").save(path)
    return path


def _read(folder: Path, **row: Any) -> Any:
    file = folder / "rows.jsonl"
    file.write_text(json.dumps({"response": "red", **row}) + "\n")
    (item,) = read_items(file)
    return item


def test_a_column_of_images_stands_where_the_prompt_says(tmp_path, picture):
    item = _read(tmp_path, prompt="Is <image> red?", image=picture.name, answer="yes")
    kinds = [type(part) for part in item.messages[0].content]
    assert kinds == [TextPart, ImagePart, TextPart]
    assert item.hidden == {"answer": "yes"}


def test_parts_of_messages_are_no_text(tmp_path, picture):
    address = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    parts = [
        {"type": "text", "text": "Which colour?"},
        {"type": "image_url", "image_url": {"url": address}},
    ]
    item = _read(tmp_path, messages=[{"role": "user", "content": parts}])
    assert [type(part) for part in item.messages[0].content] == [TextPart, ImagePart]
    assert "base64" not in item.messages[0].text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "?", "image": "none.png"}, r"rows\.jsonl:1: 'image, prompt': .*none\.png"),
        ({"prompt": "?", "image": "../red.png"}, r"rows\.jsonl:1: 'image, prompt': .*leads out of"),
        (
            {"prompt": "<image> <image>", "image": "red.png"},
            r"rows\.jsonl:1: 'image, prompt': 1 image",
        ),
        ({"prompt": 3}, r"rows\.jsonl:1: 'prompt' is not a list of chat messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"without its bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(tmp_path, picture, row, words):
    with pytest.raises(UserError, match=words):
        _read(tmp_path, **row)
