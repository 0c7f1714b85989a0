import logging

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config import Config, load
from burnish.lm import load_model
from burnish.lm.decoder import Decoder
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import write_byte_tokenizer
from burnish.lm.transformers_model import TransformersDecoder
from burnish.models.siamesenorm import new_model
from burnish.training import build

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
LORA = {"rank": 2, "targets": ["q_proj", "down_proj"]}
IDS = torch.tensor([[5, 9, 33, 7]])
FIGURES = ("x_norm", "y_norm", "update_ratio_x", "update_ratio_y", "gradient_norm")


def make_folder(tmp_path, **settings):
    new_model(tmp_path / "model", eos_token_id=2, pad_token_id=3, **SIZES | settings)
    write_byte_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def recipe_of(folder, lora=None, **changes):
    model = {"path": str(folder), "dtype": "float32", "device": "cpu"}
    return {
        "steps": 3,
        "layer_metrics_every": 2,
        "model": model | ({"lora": lora} if lora else {}),
        "task": {"kind": "arithmetic"},
        "rewards": [{"kind": "length", "unit": "characters", "min": 8, "edge": 8}],
        "rollout": {"prompts": 2, "samples": 4, "max_tokens": 8},
        "optimiser": {"learning_rate": 1e-2},
        "evaluation": {"prompts": 0},
    } | changes


@pytest.mark.parametrize(
    ("topology", "lora"),
    [("siamese_post_pre", None), ("siamese_hybrid_pre", None), ("siamese_post_pre", LORA)],
)
def test_grpo_on_two_streams_stores_its_layers_and_its_checkpoint_loads(tmp_path, topology, lora):
    folder = make_folder(tmp_path, norm_topology=topology)
    trainer = build(load(Config, recipe_of(folder, lora)), tmp_path / "run", root=tmp_path)
    module = trainer.trainable.module
    assert isinstance(module, Decoder)  # the engine itself, not its fallback
    list(trainer.run())
    metrics = trainer.store.metrics()
    trainer.store.close()
    for figure in FIGURES:
        for layer in range(2):
            points = metrics[f"layers/{figure}/{layer}"]
            assert [step for step, _ in points] == [0, 2]
            assert all(value > 0 for _, value in points)
    assert max(abs(value) for _, value in metrics["mismatch/mean_abs"]) < 1e-4
    with torch.no_grad():
        ours = module.logits(module(ModelInput(IDS, torch.arange(4)[None])))
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoints/step-000003")
        before = AutoModelForCausalLM.from_pretrained(folder)
        torch.testing.assert_close(saved(IDS).logits, ours, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(before(IDS).logits, ours, atol=1e-4), "nothing was learned"


def test_layers_are_measured_without_changing_what_is_learned(tmp_path):
    folder = make_folder(tmp_path)
    found = []
    for every in (0, 1):
        recipe = recipe_of(folder, layer_metrics_every=every)
        trainer = build(load(Config, recipe), tmp_path / f"run-{every}", root=tmp_path)
        list(trainer.run())
        names = trainer.store.metrics()
        trainer.store.close()
        assert any(name.startswith("layers/") for name in names) == bool(every)
        found.append([p.detach().clone() for p in trainer.trainable.module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_settings_beyond_the_engine_run_through_transformers_and_say_so(tmp_path, caplog):
    folder = make_folder(tmp_path, norm_type="layer", norm_eps=1e-6)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(folder, device="cpu")
    assert isinstance(loaded.module, TransformersDecoder)
    (line,) = [record.getMessage() for record in caplog.records if "slower" in record.getMessage()]
    assert "norm_type 'layer'; the built-in decoder has rms" in line
    with torch.no_grad():
        ours = loaded.module.logits(loaded.module(ModelInput(IDS, torch.arange(4)[None])))
        expected = AutoModelForCausalLM.from_pretrained(folder)(IDS).logits
    torch.testing.assert_close(ours, expected)
