"""`burnish convert`, `burnish variance` and `--decoding`, as people type them."""

import json
import math

import pytest
import torch

from burnish.api import variance
from burnish.api.variance import measure_variance
from burnish.cli.entry import run
from burnish.lm import load_model
from burnish.lm.diffusion.convert import convert
from burnish.lm.diffusion.masked_rows import Bound
from burnish.lm.diffusion.sampler import Decoding
from burnish.lm.folder import find_folder
from burnish.lm.new_model import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    return str(convert(tiny_model(place / "a"), place / "b").folder)


def said(capsys, *words):
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_folder_is_converted_and_the_next_step_is_named(capsys, tmp_path):
    source = tiny_model(tmp_path / "tiny")
    code, out, _ = said(capsys, "convert", source, tmp_path / "new")
    assert code == 0
    assert "mask token <|mask|> (260), a new token" in out
    assert "burnish train diffusion model.path=" in out
    code, out, _ = said(
        capsys, "convert", source, tmp_path / "other", "--prompt-sees", "prompt", "--json"
    )
    assert json.loads(out)["prompt_sees"] == "prompt"
    code, _, err = said(capsys, "convert", tmp_path / "new", tmp_path / "third")
    assert code == 2
    assert "masked diffusion model already" in err


def test_decoding_is_changed_by_words(capsys, model):
    words = ("generate", model, "Hi", "--max-tokens", 4)
    code, out, _ = said(capsys, *words, "--decoding", "block=2,steps=1,order=random")
    assert code == 0
    assert json.loads(out)["tokens"] <= 4
    code, _, err = said(capsys, *words, "--decoding", "steps=fast")
    assert code == 2
    assert "steps: got 'fast'" in err
    code, _, err = said(capsys, "generate", "tiny", "Hi", "--decoding", "steps=2")
    assert code == 2
    assert "expected it for masked diffusion models alone" in err


def test_the_variance_report_names_a_sampler(capsys, model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"{i} + 1?", "answer": f"{i + 1}"} for i in range(4)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("variance", model, rows, "--rows", 3, "--rates", 5, "--masks", 2)
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert "A mask" in out
    assert "least noise for its forward passes" in out
    assert "(a bound, standard error" in out
    assert "6 strata: those of a step of 32 rows" in out
    code, out, _ = said(capsys, *words, "--no-gradient", "--json")
    found = json.loads(out)
    assert set(found["parts"]) == {"A", "B", "C"}
    assert found["likelihood"]["is_bound"] is True
    assert found["samplers"][0]["gradient"] is None
    code, out, _ = said(capsys, *words, "--no-gradient", "--json", "--batch", 10)
    assert {one["strata"] for one in json.loads(out)["samplers"]} == {1, 4}


def test_bits_a_byte_are_those_of_the_text_without_its_end_tokens(tmp_path, model, monkeypatch):
    """With a canvas an answer of one byte has 7 end tokens; the tiny model has a token for each byte."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": "22"}\n')
    monkeypatch.setattr(variance, "read_decoding", lambda folder: Decoding(canvas=8))
    loaded = load_model(model, device="cpu")
    rows = variance.read_rows(str(file), loaded, 2)
    assert [len(row.ids) - row.prompt_length for row in rows] == [8, 8]
    assert [row.text_tokens for row in rows] == [1, 2]
    bounds = [Bound(-8.0, None, 1, (-1.0,) * 8) for _ in rows]
    monkeypatch.setattr(variance, "likelihood_bound", lambda *given, **more: bounds)
    found = variance._with_bound("m", loaded.module, rows, None, 0)
    assert found.bits_per_byte == pytest.approx(3.0 / (3 * math.log(2)))
    assert found.bound_per_token == -1.0


def test_rows_of_tokens_are_read(capsys, model, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [{"input_ids": [5, 6, 7 + i, 8], "prompt_length": 2} for i in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("variance", model, file, "--rates", 5, "--masks", 2, "--no-gradient", "--json")
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert json.loads(out)["likelihood"]["bits_per_byte"] is None


def test_prompts_that_see_themselves_are_measured_as_they_are_trained(tmp_path):
    convert(find_folder("tiny"), tmp_path / "model", prompt_sees="prompt")
    file = tmp_path / "rows.jsonl"
    rows = [{"input_ids": [5, 6, 7 + i, 8], "prompt_length": 2} for i in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"rates": 5, "masks": 2, "gradient": False, "device": "cpu"}
    found = measure_variance(str(tmp_path / "model"), str(file), **given)
    assert found.report.best.name
    module = load_model(tmp_path / "model", device="cpu").module
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 9]])
    with torch.no_grad():
        logits = variance._logits(module, ids, torch.ones_like(ids), torch.tensor([2, 2]))
    assert torch.allclose(logits[0, :2], logits[1, :2], atol=1e-6)


def test_the_mask_in_a_text_is_text(tmp_path):
    loaded = load_model("diffusion:tiny", device="cpu")
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a <|mask|>"}\n{"text": "b"}\n')
    assert all(260 not in row.ids for row in variance.read_rows(str(file), loaded, 2))


def test_a_causal_model_has_no_such_noise(capsys):
    code, _, err = said(capsys, "variance", "tiny", "diffusion")
    assert code == 2
    assert "is causal: its loss has no mask" in err
