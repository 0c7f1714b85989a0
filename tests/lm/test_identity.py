"""What tells two models of one name apart."""

import os

from burnish.lm.base import model_key
from burnish.lm.folder import load_model, save_model
from burnish.lm.http import OpenAILM
from burnish.lm.named import open_lm
from burnish.lm.replay import RecordingLM, ScriptedLM


def test_a_server_is_known_by_its_address_without_a_key(tmp_path):
    one = open_lm("http://me:secret@127.0.0.1:1/v1#default")
    assert model_key(one) == ("default", "http://127.0.0.1:1/v1")
    assert model_key(open_lm("http://127.0.0.1:2/v1#default")) != model_key(one)
    keyed = OpenAILM("http://127.0.0.1:1/v1", "default", api_key="hidden-key")
    assert model_key(keyed) == model_key(one)
    assert model_key(RecordingLM(one, tmp_path / "log.jsonl")) == model_key(one)


def test_models_without_an_identity_are_known_by_name():
    assert model_key(ScriptedLM([])) == ("scripted",)
    assert model_key(open_lm("tiny", late=True)) == model_key(open_lm("tiny")) == ("tiny",)


def test_a_folder_that_was_trained_in_place_is_another_model(tmp_path):
    folder = save_model(load_model("tiny"), tmp_path / "model")
    late, loaded = open_lm(str(folder), late=True), open_lm(str(folder))
    before = model_key(late)
    assert model_key(loaded) == before
    assert len(before) == 2
    weights = next(folder.glob("*.safetensors"))
    os.utime(weights, ns=(1, 1))  # same shapes, same size: only the time tells
    assert model_key(late) != before
    assert model_key(open_lm(str(folder))) == model_key(late)
    assert model_key(loaded) == before  # what is in memory has not changed
    loaded.weight_version = 3
    assert model_key(loaded) != before
