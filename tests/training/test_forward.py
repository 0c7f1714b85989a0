import pytest
import torch
from training_cases import rollout

from burnish.config.schema import Lora
from burnish.lm import load_model
from burnish.lm.decoder import plain_head
from burnish.training import packing as forward
from burnish.training.packing import make_rows, pack, token_scores
from burnish.training.trainable import Trainable

ITEMS = [rollout(str(i), "g", [5, 6, 7], list(range(20, 23 + i))) for i in range(4)]


class Behind:
    """A model whose head cannot be seen."""

    def __init__(self, model):
        self.model = model

    def __call__(self, *arguments):
        return self.model(*arguments)

    def logits(self, hidden):
        return self.model.logits(hidden)


@pytest.mark.parametrize("chunk", [2, 2048])
@pytest.mark.parametrize("entropy_gradient", [True, False])
def test_both_ways_agree(monkeypatch, chunk, entropy_gradient):
    monkeypatch.setattr(forward, "CHUNK", chunk)
    model = load_model("tiny", dtype="float64", device="cpu").module.requires_grad_(True)
    packed = pack(make_rows(ITEMS, True), ITEMS, torch.device("cpu"))
    results = []
    for way in (model, Behind(model)):
        scores = token_scores(way, packed, 0.8, entropy_gradient=entropy_gradient)
        total = scores.logp_BT.square().sum()
        if entropy_gradient:
            total = total + scores.entropy_BT.square().sum()
        assert scores.entropy_BT.requires_grad == entropy_gradient
        results.append((*scores, *torch.autograd.grad(total, list(model.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_a_head_with_an_adapter_is_not_plain(tmp_path):
    pytest.importorskip("peft")
    from burnish.lm.new_model import tiny_model

    loaded = load_model(tiny_model(tmp_path / "tiny"), dtype="float32", device="cpu")
    assert plain_head(loaded.module) is loaded.module.head_weight
    if loaded.module.lm_head is None:
        loaded.module.lm_head = type(loaded.module.model.layers[0].mlp.gate_proj)(
            *reversed(loaded.module.head_weight.shape), bias=False
        )
        loaded.module.lm_head.weight.data = loaded.module.model.embed_tokens.weight.data.clone()
    assert plain_head(loaded.module) is loaded.module.lm_head.weight
    Trainable(loaded, Lora(rank=2, alpha=4, targets=("lm_head",)))
    assert plain_head(loaded.module) is None


def test_a_model_that_is_no_decoder_has_no_plain_head():
    model = load_model("tiny", dtype="float32", device="cpu").module
    assert plain_head(Behind(model)) is None
