import json

import pytest
import torch
from test_reward_model import run_of
from training_cases import finish

from burnish.errors import UserError
from burnish.lm.folder import load_model, save_model
from burnish.lm.local import LocalLM
from burnish.lm.new_model import write_byte_tokenizer
from burnish.lm.scalar_head import padding_token, score_rows, scored_ids
from burnish.records import Message

transformers = pytest.importorskip("transformers")

TALKS = [
    [Message("user", "Which ball?"), Message("assistant", "RED")],
    [
        Message("user", "Which ball do you like best?"),
        Message("assistant", "the green one, I think"),
    ],
    [
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", "c"),
        Message("assistant", "d"),
    ],
]
SIZES = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 3,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def make(folder, family, **more):
    """A tiny random model of transformers, with the byte tokenizer."""
    torch.manual_seed(3)
    if family == "GPT2":
        sizes = {"vocab_size": 260, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
        ids = {key: SIZES[key] for key in ("pad_token_id", "eos_token_id", "bos_token_id")}
        config = transformers.GPT2Config(**sizes, **ids, **more)
    else:
        config = getattr(transformers, f"{family}Config")(**SIZES, **more)
    kind = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    kind = "ForSequenceClassification" if "num_labels" in more else kind
    getattr(transformers, family + kind)(config).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def by_transformers(folder):
    """Scores of the talks in one padded batch, as a user of transformers computes them."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.config.num_labels == 1
    texts = [
        tokenizer.apply_chat_template(
            [{"role": m.role, "content": m.text} for m in talk], tokenize=False
        )
        for talk in TALKS
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        return model(**batch).logits[:, 0].double().tolist()


def by_burnish(folder):
    loaded = load_model(folder, device="cpu")
    return score_rows(loaded, [scored_ids(loaded.tokenizer, talk) for talk in TALKS])


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "GPT2"])
def test_reward_models_of_others_have_the_same_scores(tmp_path, family):
    make(tmp_path, family, num_labels=1)
    expected = by_transformers(tmp_path)
    assert by_burnish(tmp_path) == pytest.approx(expected, abs=2e-5)
    assert len(set(expected)) == 3


@pytest.mark.parametrize("family", ["", "Qwen2", "GPT2"])
def test_a_trained_model_has_the_same_scores_in_transformers(tmp_path, family):
    """Of the built-in decoder (tied, then with a head of its own) and of transformers' families."""
    path = str(make(tmp_path / "start", family)) if family else "tiny"
    table = {"model": {"path": path}, "steps": 2, "evaluation": {"prompts": 3}}
    finish(run_of(tmp_path, table))
    saved = tmp_path / "run" / "checkpoints" / "step-000002"
    expected = by_transformers(saved)
    assert by_burnish(saved) == pytest.approx(expected, abs=2e-5)
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"][0].endswith("ForSequenceClassification")
    assert config["problem_type"] == "regression"
    from safetensors import safe_open

    with safe_open(saved / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "score.weight" in names
    assert not any(name.startswith("lm_head") for name in names)


def test_adapters_are_merged_and_the_head_is_trained(tmp_path):
    lora = {"model": {"lora": {"rank": 2, "alpha": 4.0}}, "steps": 2}
    trainer = run_of(tmp_path, lora)
    before = trainer.algorithm.head.weight.detach().clone()
    finish(trainer)
    assert not torch.equal(before, trainer.algorithm.head.weight)
    saved = tmp_path / "run" / "checkpoints" / "step-000002"
    assert by_burnish(saved) == pytest.approx(by_transformers(saved), abs=2e-5)


def test_training_goes_on_from_a_reward_model_and_nothing_else_does(tmp_path):
    make(tmp_path / "start", "Llama", num_labels=1)
    head = load_model(tmp_path / "start", device="cpu").score_head.weight
    table = {"model": {"path": str(tmp_path / "start")}, "steps": 1}
    trainer = run_of(tmp_path, table)
    assert torch.equal(trainer.algorithm.head.weight, head)
    trainer.store.close()
    with pytest.raises(UserError, match=r"which writes no text.*'process_reward_model' where"):
        run_of(tmp_path, {**table, "train": {"kind": "dpo"}}, run="other")
    with pytest.raises(UserError, match="is a reward model, which writes nothing"):
        LocalLM(load_model(tmp_path / "start", device="cpu"))


def test_padding_is_never_the_token_that_conversations_end_with(tmp_path):
    """A template that ends with the padding token, as SmolLM2's and Llama 3's may."""
    make(tmp_path / "start", "Llama", num_labels=1)
    settings = tmp_path / "start" / "tokenizer_config.json"
    named = json.loads(settings.read_text()) | {"pad_token": "<|im_end|>"}
    settings.write_text(json.dumps(named))
    file = tmp_path / "start" / "chat_template.jinja"
    file.write_text(
        file.read_text().replace("<|im_end|>\\n' }}{% endfor", "<|im_end|>' }}{% endfor")
    )
    loaded = load_model(tmp_path / "start", device="cpu")
    assert scored_ids(loaded.tokenizer, TALKS[0])[-1] == loaded.tokenizer.pad_id == 2
    assert padding_token(loaded.tokenizer) != 2
    save_model(loaded, tmp_path / "saved")
    assert by_burnish(tmp_path / "saved") == pytest.approx(
        by_transformers(tmp_path / "saved"), abs=2e-5
    )
