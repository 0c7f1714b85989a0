"""`burnish layers`: the loss without each layer, paired over documents."""

import json
import math

import msgspec
import pytest
import torch

from burnish.api.layers import measure_layers
from burnish.cli.entry import run
from burnish.lm import load_model
from burnish.lm.local import LocalLM
from burnish.lm.model_input import ModelInput
from burnish.models.norm_report import find_layers, without_layers


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": "abc " * k + "d"}) + "\n" for k in range(2, 8)))
    return path


def test_losses_are_those_of_the_next_token_without_the_layers(texts):
    lm = LocalLM(load_model("tiny", device="cpu", dtype="float64"))
    module = lm.loaded.module
    told = []
    found = measure_layers(lm, str(texts), tokens=12, on_group=lambda *done: told.append(done))
    count = len(find_layers(module)[1])
    # The last quarter is the last layer here: it is measured once.
    assert [one.layers for one in found.effects] == [(i,) for i in range(count)]
    assert told == [(i + 1, count) for i in range(count)]
    assert (found.documents, found.is_bound) == (6, False)

    def nats():
        losses = []
        for line in texts.read_text().splitlines():
            ids = [0, *lm.tokenizer.encode(json.loads(line)["text"])][:13]
            rows = torch.tensor([ids[:-1]])
            positions = torch.arange(len(ids) - 1)[None]
            logits = module.logits(module(ModelInput(rows, positions)))[0]
            logp = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
            losses.append(-float(logp.mean().detach()))
        return sum(losses) / len(losses)

    assert found.loss == pytest.approx(nats(), rel=1e-6)
    for effect in found.effects:
        with without_layers(module, effect.layers):
            assert effect.loss == pytest.approx(nats(), rel=1e-6)
        assert effect.change.size == 6
        assert effect.change.low <= effect.change.value <= effect.change.high
        assert effect.change.value == pytest.approx(effect.loss - found.loss)
    assert found.loss == pytest.approx(nats(), rel=1e-6)  # the layers are back


def test_a_layer_that_breaks_has_no_number(texts, monkeypatch):
    lm = LocalLM(load_model("tiny", device="cpu", dtype="float64"))
    plain = lm.score_batch
    calls = []

    def broken(pairs, **more):
        calls.append(1)
        scores = plain(pairs, **more)
        if len(calls) == 2:
            scores[0] = msgspec.structs.replace(scores[0], logprobs=(math.nan,))
        return scores

    monkeypatch.setattr(lm, "score_batch", broken)
    found = measure_layers(lm, str(texts), tokens=6)
    assert (found.effects[0].loss, found.effects[0].change) == (None, None)
    assert found.effects[1].loss is not None


def test_the_command_says_it(texts, capsys):
    assert run(["layers", "tiny", str(texts), "--tokens", "8"]) == 0
    said = capsys.readouterr().out
    assert "nats a token, mean over 6 documents, 48 tokens" in said
    assert "without layer" in said
    assert run(["layers", "diffusion:tiny", str(texts), "--tokens", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_bound"] is True
    assert found["effects"][0]["change"]["size"] == 6


def test_without_a_text_it_reads_those_that_ship(typed):
    done = typed("layers", "tiny", "--documents", "4", "--tokens", "16")
    assert done.code == 0, done.err
    assert "4 documents" in done.out
    assert "of the texts that ship" in " ".join(done.out.split())
