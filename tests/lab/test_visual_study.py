"""The study of the small vision-language model: rows, controls, measures, a trial that goes on."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.visual import describe, measure, probe
from lab.visual.rows import Drawn
from transformers import AutoTokenizer

from burnish.lm.new_model import tiny_model
from burnish.models.visual import new_visual
from burnish.tasks import Asked


@pytest.fixture(scope="module")
def eyes(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    model = new_visual(root / "eyes", tiny_model(root / "decoder"), encoder="tiny")
    return model, AutoTokenizer.from_pretrained(root / "eyes")


def test_majority_by_question_then_kind():
    none: Any = None
    seen = [
        Asked("colour", "a?", "red"),
        Asked("colour", "a?", "red"),
        Asked("colour", "b?", "blue"),
    ]
    drawn = [Drawn("scenes", none, seen)]
    asked = [Asked("colour", "b?", "x"), Asked("colour", "new?", "x"), Asked("count", "?", "x")]
    assert measure.majority(drawn, ["scenes"] * 3, asked) == ["blue", "red", ""]


def test_trial_stops_and_goes_on(tmp_path, monkeypatch, capsys):
    """A run that is stopped behind a checkpoint ends with the figures of one that is not."""
    monkeypatch.setattr(describe, "SAVE_EVERY", 1)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))

    def start(work: str) -> dict[str, float]:
        line = f"describe --trial --seeds 1 --work {tmp_path / work} --out {tmp_path}"
        monkeypatch.setattr(sys, "argv", line.split())
        describe.main()
        found: dict[str, float] = json.loads(
            next((tmp_path / work).glob("*/figures.json")).read_text()
        )
        return found

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    whole = start("whole")
    kept = describe.save

    def save_once(model: Any, optimiser: Any, losses: list[float], work: Path) -> None:
        kept(model, optimiser, losses, work)
        if len(losses) == 2:
            stop()

    monkeypatch.setattr(describe, "save", save_once)
    with pytest.raises(KeyboardInterrupt):
        start("parts")
    monkeypatch.setattr(describe, "save", kept)
    parts = start("parts")
    assert "going on at step 2" in capsys.readouterr().err
    for figures in (whole, parts):
        figures.pop("seconds")
    assert parts == whole
    assert "| all questions |" in (tmp_path / "tiny_all.md").read_text()


def test_probe_reads_what_is_there():
    """With a Gram matrix of one-hot classes all is read, with another order nothing."""
    classes = [n % 4 for n in range(80)]
    codes = torch.nn.functional.one_hot(torch.tensor(classes), 4).float()
    one = probe.Question("colour", list(range(80)), classes, 4)
    assert probe.accuracy(codes @ codes.T, one, 20) == (20, 20)
    order = [(n + 1) % 60 for n in range(60)]
    assert probe.accuracy(codes @ codes.T, one, 20, order) == (0, 20)
