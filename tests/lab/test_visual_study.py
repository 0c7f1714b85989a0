"""The study of the small vision-language model: rows, controls, measures, a trial that goes on."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.visual import describe, measure, probe
from lab.visual.rows import END, Drawn, Writer, draw, encode
from transformers import AutoTokenizer

from burnish.lm.new_model import tiny_model
from burnish.models.visual import new_visual
from burnish.tasks import Asked


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    root = tmp_path_factory.mktemp("study")
    model = new_visual(root / "eyes", tiny_model(root / "decoder"), encoder="tiny")
    return model, AutoTokenizer.from_pretrained(root / "eyes")


def test_rows_are_what_the_template_writes(eyes: tuple[Any, Any]) -> None:
    model, tokenizer = eyes
    asked = [Asked("count", "How many?", "2"), Asked("colour", "Which?", "red")]
    row = Writer(tokenizer, model.config.image_token_id, 3).row(asked)
    parts: list[dict[str, Any]] = [{"type": "image"}, {"type": "text", "text": "How many?"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "content": "red"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    whole = text.replace("<|image|>", "<|image|>" * 3).removesuffix("\n")
    assert row.ids == tokenizer(whole, add_special_tokens=False)["input_ids"]
    taught = [token for token, is_taught in zip(*row, strict=True) if is_taught]
    assert tokenizer.decode(taught) == f"2{END}red{END}"


def test_pictures_of_a_study() -> None:
    train = draw(6, "easy", 0, 4, held_out=False)
    assert [one.world for one in train] == ["scenes", "charts"] * 3
    assert all(one.pixels.shape == (224, 224, 3) for one in train)
    held = draw(4, "full", 0, 0, held_out=True)
    again = draw(4, "full", 9, 0, held_out=True)
    assert [one.asked for one in held] == [one.asked for one in again]
    assert held[2].asked[-1].kind == "describe"


def test_normalised_as_the_processor_does(eyes: tuple[Any, Any]) -> None:
    from burnish.models.visual import VisualImageProcessor

    model, _ = eyes
    drawn = draw(2, "easy", 0, 1, held_out=False)
    pixels = VisualImageProcessor()([one.pixels for one in drawn], return_tensors="pt")
    wanted = model.model.encode(pixels["pixel_values"])
    found = encode(model, drawn, 1, lambda n: None)
    assert torch.allclose(found.float(), wanted, atol=1e-2, rtol=1e-2)


def test_facts_of_descriptions() -> None:
    truth = "2 things: a red circle in row 1, column 2, a red circle in row 3, column 1."
    assert measure.fact_f1(truth, truth) == 1
    assert measure.fact_f1("1 thing: a red circle in row 1, column 2.", truth) == 2 / 3
    assert measure.fact_f1("a red circle in row 2, column 2", truth) == 0
    assert measure.fact_f1("", truth) == 0
    assert measure.fact_f1("A is 3, B is 4", "A is 3, C is 4") == 0.5


def test_majority_by_question_then_kind() -> None:
    none: Any = None
    seen = [
        Asked("colour", "a?", "red"),
        Asked("colour", "a?", "red"),
        Asked("colour", "b?", "blue"),
    ]
    drawn = [Drawn("scenes", none, seen)]
    asked = [Asked("colour", "b?", "x"), Asked("colour", "new?", "x"), Asked("count", "?", "x")]
    assert measure.majority(drawn, ["scenes"] * 3, asked) == ["blue", "red", ""]


def test_trial_stops_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_run_with_other_settings_is_another_run(tmp_path: Path) -> None:
    plans = (describe.CPU, describe.CPU._replace(steps=10), describe.GPU)
    folders = [describe.folder_of(plan, seed, tmp_path) for plan in plans for seed in (0, 1)]
    assert len({*folders}) == 6


def test_probe_reads_what_is_there() -> None:
    """With a Gram matrix of one-hot classes all is read, with another order nothing."""
    classes = [n % 4 for n in range(80)]
    codes = torch.nn.functional.one_hot(torch.tensor(classes), 4).float()
    one = probe.Question("colour", list(range(80)), classes, 4)
    assert probe.accuracy(codes @ codes.T, one, 20) == (20, 20)
    order = [(n + 1) % 60 for n in range(60)]
    assert probe.accuracy(codes @ codes.T, one, 20, order) == (0, 20)
