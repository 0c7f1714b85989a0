"""Loading and saving Hugging Face folders."""

import json
import logging
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.folder import load_model, save_model
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import tiny_model
from burnish.lm.transformers_model import TransformersDecoder

SMALL_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 260, "n_positions": 64}


@pytest.fixture
def tiny(tmp_path):
    return tiny_model(tmp_path / "tiny")


@torch.no_grad()
def logits_of(module, ids):
    return module.logits(module(ModelInput(ids, torch.arange(ids.shape[1]).expand(ids.shape))))


def test_loading_does_not_import_transformers(tiny):
    code = (
        "import sys; from burnish.lm import load_model\n"
        f"m = load_model({str(tiny)!r}); print(m.parameters)\n"
        "bad = {'transformers', 'torch._dynamo'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "115264"


def test_round_trip_through_real_transformers(tiny, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load_model(tiny, device="cpu")
    with torch.no_grad():
        for parameter in loaded.module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    saved = save_model(loaded, tmp_path / "saved")
    names = set(load_file(saved / "model.safetensors"))
    assert "lm_head.weight" not in names
    assert not list(saved.glob("*.bin"))
    assert not list(saved.glob("*partial*"))
    theirs = AutoModelForCausalLM.from_pretrained(saved)
    assert theirs.dtype == torch.float32
    ids = torch.tensor([[1, 88, 86, 2, 30]])
    expected = theirs(ids).logits
    assert torch.allclose(logits_of(loaded.module, ids), expected, rtol=1e-4, atol=1e-3)
    assert AutoTokenizer.from_pretrained(saved).eos_token_id == 2
    again = load_model(saved, device="cpu")
    assert torch.equal(logits_of(again.module, ids), logits_of(loaded.module, ids))
    theirs.save_pretrained(tmp_path / "theirs")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "theirs" / name).write_bytes((saved / name).read_bytes())
    back = load_model(tmp_path / "theirs", device="cpu")
    assert torch.equal(logits_of(back.module, ids), logits_of(loaded.module, ids))


def test_saved_dtype_is_the_dtype_of_the_weights(tiny, tmp_path):
    loaded = load_model(tiny, dtype="bfloat16", device="cpu")
    assert loaded.dtype is torch.bfloat16
    saved = save_model(loaded, tmp_path / "saved")
    assert json.loads((saved / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_model(saved, device="cpu").dtype is torch.bfloat16
    stored = load_file(saved / "model.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.bfloat16}


def test_saving_in_place_keeps_the_tokenizer_and_replaces_the_weights(tiny):
    loaded = load_model(tiny, device="cpu")
    with torch.no_grad():
        loaded.module.model.norm.weight.fill_(3.0)
    save_model(loaded, tiny)
    again = load_model(tiny, device="cpu")
    assert again.module.model.norm.weight.eq(3.0).all()
    assert again.tokenizer.eos_ids == (2,)


def test_sharded_weights_with_an_untied_head(tiny):
    weights = load_file(tiny / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 2
    names = sorted(weights)
    parts = {"model-1.safetensors": names[:7], "model-2.safetensors": names[7:]}
    for file, held in parts.items():
        save_file({n: weights[n] for n in held}, tiny / file, metadata={"format": "pt"})
    weight_map = {n: file for file, held in parts.items() for n in held}
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = json.loads((tiny / "config.json").read_text()) | {"tie_word_embeddings": False}
    (tiny / "config.json").write_text(json.dumps(config))
    loaded = load_model(tiny, device="cpu")
    assert torch.equal(loaded.module.head_weight, weights["lm_head.weight"])
    weight_map["model.norm.weight"] = "../model-1.safetensors"
    (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match="weight_map"):
        load_model(tiny)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("GPT2", SMALL_GPT2),
        (
            "Gemma2",
            {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 16,
                "vocab_size": 260,
                "final_logit_softcapping": 5.0,
                "sliding_window": 40,
            },
        ),
    ],
)
def test_other_families_run_through_transformers(tiny, tmp_path, caplog, family, settings):
    import transformers

    from burnish.lm.base import Sampling
    from burnish.lm.local import LocalLM

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "other" / name).write_bytes((tiny / name).read_bytes())
    with caplog.at_level(logging.WARNING, logger="burnish"):
        loaded = load_model(tmp_path / "other", dtype="float32", device="cpu")
    assert isinstance(loaded.module, TransformersDecoder)
    assert "runs through transformers" in caplog.text
    loaded.module.train()  # dropout stays off: trainer and sampler compute the same
    ids = torch.tensor([[5, 9, 33, 7]])
    assert torch.allclose(logits_of(loaded.module, ids), model(ids).logits, atol=1e-4)
    lm = LocalLM(loaded)
    greedy = Sampling(n=2, temperature=0, max_tokens=6)
    prompts = [(5, 9, 33, 7), (11, 12)]
    got = lm.sample_batch([lm.request(p, greedy) for p in prompts])
    loaded.tokenizer.eos_ids = ()
    for prompt, completions in zip(prompts, got, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=3
        )[0, len(prompt) :].tolist()
        assert list(completions[0].token_ids) == expected[: len(completions[0].token_ids)]
        assert completions[0] == completions[1]
    saved = save_model(loaded, tmp_path / "saved")
    again = load_model(saved, dtype="float32", device="cpu")
    assert torch.equal(logits_of(again.module, ids), logits_of(loaded.module, ids))


def test_mistakes_get_one_line(tiny, tmp_path):
    with pytest.raises(UserError, match=r"does not exist.*Did you mean 'tiny'\?"):
        load_model(tmp_path / "tini")
    with pytest.raises(UserError, match="Did you mean 'smollm2'"):
        load_model("smolm2")
    with pytest.raises(UserError, match="is a file"):
        load_model(tiny / "config.json")
    with pytest.raises(UserError, match=r"no config\.json \(found: nothing\)"):
        load_model(_empty(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"dtype 'bfloat'.*Did you mean 'bfloat16'"):
        load_model(tiny, dtype="bfloat")
    with pytest.raises(UserError, match="device 'gpu'"):
        load_model(tiny, device="gpu")


ODD = [
    ("config.json", {"num_hidden_layers": 1}, r"layers\.1\.input_layernorm.weight has no place"),
    ("config.json", {"num_hidden_layers": 3}, r"lacks 9 of 29.*layers\.2\."),
    ("config.json", {"num_hidden_layers": "2"}, "Expected `int`, got `str` - at `.*layers`"),
    ("config.json", {"hidden_size": None}, r"hidden_size"),
    ("config.json", {"num_attention_heads": 0}, "num_attention_heads"),
    ("config.json", {"num_key_value_heads": 3}, "4 heads of 16 numbers over 3 of keys"),
    ("config.json", {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ("config.json", {"rope_parameters": {"rope_type": "linear"}}, "'linear' has no factor"),
    ("config.json", {"rope_parameters": {"rope_theta": 0}}, "rope_theta"),
    ("config.json", {"vocab_size": 5}, r"embed_tokens.weight .* has shape \(260, 64\)"),
    ("config.json", {"model_type": ["llama"]}, "Expected `str`, got `array`"),
    ("config.json", {"model_type": "nonesuch"}, "cannot be loaded by transformers"),
    ("config.json", {"architectures": "x"}, "architectures"),
    ("config.json", {"dtype": 5}, "dtype"),
    ("config.json", {"eos_token_id": "2"}, "eos_token_id"),
    ("config.json", b"\xff", "not valid JSON"),
    ("config.json", b"[" * 100_000, "not valid JSON"),
    ("generation_config.json", b"[]", "holds a list"),
    ("tokenizer_config.json", {"eos_token": {"x": 1}}, "content"),
    ("tokenizer_config.json", {"bos_token": 5}, "bos_token"),
    ("tokenizer.json", b"null", "is not a tokenizer"),
    ("tokenizer.json", b"\xff", "is not a tokenizer"),
    (
        "tokenizer.json",
        b'{"added_tokens":[],"model":{"type":"WordLevel","vocab":{},"unk_token":"u"}}',
        "is not a tokenizer",
    ),
    ("chat_template.jinja", b"\xff", "cannot be read as UTF-8"),
    ("chat_template.json", b"5", "holds a int"),
    ("model.safetensors", b"not weights", "not a safetensors file"),
    ("model.safetensors.index.json", b'{"weight_map": {}}', "weight_map"),
]


def test_weights_that_do_not_fit_are_named(tiny):
    weights = load_file(tiny / "model.safetensors")
    save_file(dict(weights) | {"model.norm.weight": torch.ones(63)}, tiny / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.norm\.weight .* has shape \(63,\).*\(64,\)"):
        load_model(tiny)
    (tiny / "model.safetensors").unlink()
    (tiny / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="Pickled weights are not read"):
        load_model(tiny)


def test_a_shorter_stack_than_its_weights_is_refused_of_other_families_too(tiny, tmp_path):
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**SMALL_GPT2))
    model.save_pretrained(tmp_path / "gpt2")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "gpt2" / name).write_bytes((tiny / name).read_bytes())
    file = tmp_path / "gpt2" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_layer": 1}))
    with pytest.raises(UserError, match=r"h\.1\..* has no place"):
        load_model(tmp_path / "gpt2", device="cpu")


def test_an_answer_of_weights_that_are_no_numbers_is_an_error(tiny):
    import anyio

    from burnish.errors import ModelError
    from burnish.lm.base import Sampling
    from burnish.lm.local import LocalLM
    from burnish.records import Finish

    loaded = load_model(tiny, device="cpu")
    with torch.no_grad():
        loaded.module.model.norm.weight.fill_(float("nan"))
    lm = LocalLM(loaded)
    (answer,) = anyio.run(lm.sample, (5, 9), Sampling(max_tokens=3))
    assert answer.finish is Finish.ERROR
    with pytest.raises(ModelError, match="no finite log-prob"):
        anyio.run(lm.score, (5, 9), (4,))


def test_the_name_tiny_is_written_once_and_reproducibly(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    first = load_model("tiny", device="cpu")
    assert isinstance(first.module, Decoder)
    written = (first.folder / "model.safetensors").stat().st_mtime_ns
    assert load_model("tiny", device="cpu").folder == first.folder
    assert (first.folder / "model.safetensors").stat().st_mtime_ns == written
    other = tiny_model(tmp_path / "other")
    same = (other / "model.safetensors").read_bytes()
    assert same == (first.folder / "model.safetensors").read_bytes()
    different = tiny_model(tmp_path / "different", seed=1)
    assert same != (different / "model.safetensors").read_bytes()


def _empty(folder):
    folder.mkdir()
    return folder
