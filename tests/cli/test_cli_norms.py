"""`burnish norms`, as people type it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.cli.entry import run
from burnish.lm.new_model import tiny_model
from burnish.models.siamesenorm import new_model


def said(capsys, *words):
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_model_is_measured_layer_by_layer(capsys, tiny):
    code, out, _ = said(capsys, "norms", tiny, "Hello there")
    assert code == 0
    assert "11 tokens" in out
    assert "layer 2" in out
    assert "times as long as what the model reads" in out
    code, out, _ = said(capsys, "norms", tiny, "Hello there", "--json")
    found = json.loads(out)
    assert found["tokens"] == 11
    assert len(found["layers"]) == 2
    ratio = found["layers"][-1]["mean"] / found["embedding"]["mean"]
    assert found["ratio"] == pytest.approx(ratio)


def test_the_built_in_decoder_and_transformers_agree(capsys, tiny, tmp_path):
    """Of two streams the one that is never normalised is measured."""
    made = new_model(hidden_size=64, num_hidden_layers=2, vocab_size=260)
    folder = tiny_model(tmp_path / "siamese")
    made.save_pretrained(folder)
    _, out, _ = said(capsys, "norms", folder, "Hello there", "--json")
    found = json.loads(out)
    from burnish.models.norm_report import measure_norm_gap

    ids = torch.tensor([list(range(11))])
    gap = measure_norm_gap(made, lambda: made.model(ids).last_hidden_state)
    assert len(found["layers"]) == len(gap.layers)
    assert found["layers"][-1]["mean"] > found["embedding"]["mean"]


def test_an_empty_file_is_not_taken_for_the_shipped_text(capsys, tiny, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    code, _, err = said(capsys, "norms", tiny, tmp_path / "empty.txt")
    assert code == 2
    assert "nothing to read" in err


def test_weights_that_are_no_numbers_are_refused_by_name(capsys, tmp_path):
    folder = tiny_model(tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    code, _, err = said(capsys, "norms", folder)
    assert code == 2
    assert "model.layers.1.mlp.up_proj.weight has values" in " ".join(err.split())


def test_a_file_in_the_place_of_words_is_read(capsys, tiny, tmp_path):
    (tmp_path / "words.txt").write_text("Hello there, all of you")
    found = json.loads(said(capsys, "norms", tiny, tmp_path / "words.txt", "--json")[1])
    assert found["tokens"] == 23
    code, _, err = said(capsys, "norms", tiny, tmp_path)
    assert code
    assert "cannot be read" in err
