import shutil

import pytest
import torch

from burnish.config import Config, load
from burnish.lm import tiny_model
from burnish.lm.model_input import ModelInput
from burnish.training import build

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 260}
FAMILIES = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 260, "n_positions": 256},
    "Gemma2": SIZES | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    # Keeps a state that no mask hides: its rollouts cannot share a row.
    "Lfm2": SIZES
    | {"layer_types": ["conv", "full_attention"], "num_attention_heads": 4}
    | {"num_key_value_heads": 2},
}
LORA = {"rank": 2, "targets": ["q_proj", "v_proj"]}


def save(folder, family, settings):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_model(folder.parent / "tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(folder.parent / "tokenizer" / name, folder / name)
    return folder


@pytest.mark.parametrize(
    ("family", "lora"), [("GPT2", None), ("Gemma2", None), ("Gemma2", LORA), ("Lfm2", None)]
)
def test_a_family_of_transformers_trains_and_its_checkpoint_loads(tmp_path, family, lora):
    from transformers import AutoModelForCausalLM

    folder = save(tmp_path / "model", family, FAMILIES[family])
    recipe = {
        "steps": 2,
        "model": {"path": str(folder), "dtype": "float32", "device": "cpu"},
        "task": {"kind": "arithmetic"},
        "rewards": [{"kind": "length", "unit": "characters", "min": 8, "edge": 8}],
        "rollout": {"prompts": 2, "samples": 4, "max_tokens": 8},
        "optimiser": {"learning_rate": 1e-2},
        "evaluation": {"prompts": 0},
    }
    if lora:
        recipe["model"]["lora"] = lora
    trainer = build(load(Config, recipe), tmp_path / "run", root=tmp_path)
    assert trainer.forecast.total > 0
    assert trainer.trainable.module.packs == (family != "Lfm2")
    list(trainer.run())
    trainer.store.close()
    ids = torch.tensor([[5, 9, 33, 7]])
    with torch.no_grad():
        module = trainer.trainable.module
        ours = module.logits(module(ModelInput(ids, torch.arange(4)[None])))
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoints/step-000002")
        before = AutoModelForCausalLM.from_pretrained(folder)
        torch.testing.assert_close(saved(ids).logits, ours, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(before(ids).logits, ours, atol=1e-4), "nothing was learned"
