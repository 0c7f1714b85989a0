"""`burnish convert --to visual`, as people type it."""

import json

import pytest
from transformers import AutoModelForImageTextToText

from burnish.cli.entry import run
from burnish.lm.new_model import tiny_model


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_decoder_gets_eyes(capsys, tmp_path):
    source, eyes = tiny_model(tmp_path / "tiny"), tmp_path / "eyes"
    words = ("convert", source, eyes, "--to", "visual", "--encoder", "tiny", "--image-size", "96")
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert "tiny at 96 pixels, 9 tokens an image" in out
    assert f"burnish train visual model.path={eyes}" in " ".join(out.split())
    assert AutoModelForImageTextToText.from_pretrained(eyes).config.image_tokens == 9
    code, _, err = said(capsys, *words)
    assert code == 2
    assert "not empty" in err
    code, out, _ = said(capsys, "convert", source, tmp_path / "more", *words[3:], "--json")
    assert json.loads(out)["image_tokens"] == 9
