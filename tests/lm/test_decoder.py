"""The built-in decoder against the real transformers classes, and its cache and masks."""

import json

import pytest
import torch

from burnish.lm.architecture import Unsupported, read_architecture
from burnish.lm.decoder import Decoder, init_weights
from burnish.lm.fused import add_norm
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import tiny_model
from burnish.models.blocks import TOPOLOGIES

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_SETTINGS = {"beta_fast": 4.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 1.2}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
CONFIGS = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_wide_heads": ("Llama", {"head_dim": 16}),
    "llama3_rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear_rope": ("Llama", {"rope_parameters": LINEAR_ROPE}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "yarn": ("Qwen2", {"rope_parameters": YARN_ROPE}),
    "yarn_with_its_settings": (
        "Llama",
        {"rope_parameters": {**YARN_ROPE, **YARN_SETTINGS, "truncate": False}, "head_dim": 16},
    ),
    "yarn_with_a_given_scale": (
        "Qwen3",
        {"rope_parameters": {**YARN_ROPE, "attention_factor": 1.3}, "head_dim": 16},
    ),
    **{
        topology: ("SiameseNorm", {"norm_topology": topology, "num_hidden_layers": 3})
        for topology in TOPOLOGIES
    },
    "siamese_by_sublayer": ("SiameseNorm", {"depth_scale": "sqrt_l", "normalized_input": False}),
    "siamese_own_head": ("SiameseNorm", {"tie_word_embeddings": False, "qkv_norm": "qk"}),
    # Windows of fewer tokens than the rows of these tests have.
    "mistral_window": ("Mistral", {"sliding_window": 6, "head_dim": 8}),
    "mistral_window_of_one": ("Mistral", {"sliding_window": 1, "head_dim": 8}),
    "qwen2_window_from_layer_1": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3_window_in_layer_0": (
        "Qwen3",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def make_pair(name):
    """A random transformers model and a decoder with its weights."""
    import transformers

    from burnish.models import siamesenorm

    family, extra = CONFIGS[name]
    home = siamesenorm if family == "SiameseNorm" else transformers
    config = getattr(home, f"{family}Config")(**SMALL | extra)
    torch.manual_seed(3)
    theirs = getattr(home, f"{family}ForCausalLM")(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = Decoder(read_architecture(json.loads(config.to_json_string(use_diff=True))))
    weights = {k: v for k, v in theirs.state_dict().items() if k in ours.state_dict()}
    ours.load_state_dict(weights, strict=True)
    return ours, theirs


def tiny_decoder(tmp_path, **changes):
    config = json.loads((tiny_model(tmp_path / "m") / "config.json").read_text()) | changes
    decoder = Decoder(read_architecture(config))
    init_weights(decoder, seed=1, std=0.2)
    return decoder


def positions_of(ids):
    return torch.arange(ids.shape[1]).expand(ids.shape)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_logits_and_greedy_tokens_equal_transformers(name):
    ours, theirs = make_pair(name)
    ids = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(0))
    got = ours.logits(ours(ModelInput(ids, positions_of(ids))))
    expected = theirs(ids).logits
    assert (got - expected).abs().max() <= 1e-4
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    assert expected.std() > 0.1  # the comparison is about real numbers, not zeros


@pytest.mark.parametrize(
    "name",
    ["llama", "qwen2", "qwen3", "yarn", "mistral_window", "qwen3_window_in_layer_0", *TOPOLOGIES],
)
def test_gradients_equal_transformers(name):
    ours, theirs = make_pair(name)
    ids = torch.randint(0, 97, (2, 12), generator=torch.Generator().manual_seed(1))
    ours.logits(ours(ModelInput(ids, positions_of(ids)))).logsumexp(-1).sum().backward()
    theirs(ids).logits.logsumexp(-1).sum().backward()
    expected = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, expected[key].grad, rtol=1e-3, atol=2e-3), key


def test_gradient_matches_finite_differences_in_float64(tmp_path):
    decoder = tiny_decoder(tmp_path).double()
    ids = torch.tensor([[5, 9, 33, 7]])
    weight = decoder.model.layers[0].self_attn.k_proj.weight

    def loss():
        return (
            decoder.logits(decoder(ModelInput(ids, positions_of(ids))))
            .log_softmax(-1)[0, :, 11]
            .sum()
        )

    loss().backward()
    with torch.no_grad():
        index, step = (3, 17), 1e-5
        weight[index] += step
        above = loss()
        weight[index] -= 2 * step
        below = loss()
    assert weight.grad[index].item() == pytest.approx(
        ((above - below) / (2 * step)).item(), rel=1e-4
    )


@torch.no_grad()
def test_keys_are_shown_to_whoever_keeps_them(tmp_path):
    decoder = tiny_decoder(tmp_path)
    a = decoder.architecture
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    seen = []
    plain = decoder(ModelInput(ids, positions_of(ids)))
    kept = decoder(ModelInput(ids, positions_of(ids)), keep=lambda *shown: seen.append(shown))
    assert torch.allclose(kept, plain, atol=1e-5)
    assert [layer for layer, _, _ in seen] == list(range(a.layers))
    assert all(key.shape == (2, a.kv_heads, 3, a.head_dim) for _, key, _ in seen)
    shorter = []
    decoder(
        ModelInput(ids[:, :2], positions_of(ids)[:, :2]), keep=lambda *shown: shorter.append(shown)
    )
    for (_, key, value), (_, short_key, short_value) in zip(seen, shorter, strict=True):
        assert torch.allclose(key[:, :, :2], short_key, atol=1e-5)
        assert torch.allclose(value[:, :, :2], short_value, atol=1e-5)


@torch.no_grad()
def test_packed_responses_behind_one_prompt_equal_separate_rows(tmp_path):
    decoder = tiny_decoder(tmp_path)
    prompt, first, second = [5, 6, 7], [11, 12], [21, 22, 23]
    packed = torch.tensor([prompt + first + second])
    positions = torch.tensor([[0, 1, 2, 3, 4, 3, 4, 5]])
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    mask[5:, 3:5] = False  # the second response does not see the first
    hidden = decoder(ModelInput(packed, positions, mask.unsqueeze(0)))
    alone = torch.tensor([prompt + second])
    expected = decoder(ModelInput(alone, positions_of(alone)))
    assert torch.allclose(hidden[:, 5:], expected[:, 3:], atol=1e-5)


@torch.no_grad()
def test_casting_does_not_round_the_rotary_frequencies(tmp_path):
    decoder = tiny_decoder(tmp_path)
    ids = torch.full((1, 1), 9)
    far = torch.tensor([[701]])
    exact = decoder.rotation(far, torch.float32)
    decoder.to(torch.bfloat16).to(torch.float32)
    decoder(ModelInput(ids, far))
    assert torch.equal(decoder.rotation(far, torch.float32).cos, exact.cos)


@torch.no_grad()
def test_half_precision_adds_up_its_residual_stream_in_float32(tmp_path):
    decoder = tiny_decoder(tmp_path, num_hidden_layers=24)
    # As in a trained model, the stream is larger than what one layer adds to it.
    init_weights(decoder, seed=1, std=0.05)
    torch.nn.init.normal_(decoder.model.embed_tokens.weight, generator=torch.Generator())
    ids = torch.randint(0, 64, (1, 12), generator=torch.Generator().manual_seed(2))
    decoder.to(torch.bfloat16)
    seen = []

    def note(_layer, _inputs, outputs):
        seen.append((outputs.y.dtype, outputs.update.dtype))

    handles = [layer.register_forward_hook(note) for layer in decoder.model.layers]
    hidden = decoder(ModelInput(ids, positions_of(ids))).float()
    assert seen == [(torch.float32, torch.bfloat16)] * 24
    for handle in handles:
        handle.remove()
    assert hidden.equal(hidden.bfloat16().float()), "the norm comes out in the weights' type"
    exact = decoder.double()(ModelInput(ids, positions_of(ids)))
    rounded = _with_a_rounded_stream(decoder.bfloat16(), ids)
    error, rounded_error = ((h - exact).norm() for h in (hidden, rounded))
    assert error < 0.5 * rounded_error


def _with_a_rounded_stream(decoder, ids):
    """Hidden states where every sum is rounded to the weights' type."""
    handles = [
        layer.register_forward_hook(lambda _, __, out: out._replace(y=out.y.bfloat16().float()))
        for layer in decoder.model.layers
    ]
    hidden = decoder(ModelInput(ids, positions_of(ids)))
    for handle in handles:
        handle.remove()
    return hidden.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_add_norm_by_hand(dtype):
    residual = torch.tensor([[1.0, 2.0], [6.0, 8.0]], dtype=dtype)
    delta = torch.tensor([[2.0, 2.0], [0.0, 0.0]], dtype=dtype)
    total, normed = add_norm(residual, delta, torch.tensor([1.0, 0.5], dtype=dtype), 0.0)
    assert total.tolist() == [[3.0, 4.0], [6.0, 8.0]]
    assert total.dtype == torch.float32
    assert normed.dtype == dtype
    # Both rows point the same way: 3 and 4 over the root of 12.5, the second number halved.
    expected = torch.tensor([[0.848528, 0.565685]] * 2)
    assert torch.allclose(normed.float(), expected, atol=1e-6 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("name", ["mistral_window", "qwen2_window_from_layer_1"])
@torch.no_grad()
def test_a_window_counts_the_tokens_of_a_response_and_not_those_of_its_row(name):
    ours, theirs = make_pair(name)
    prompt, first, second = list(range(5, 14)), list(range(20, 32)), list(range(40, 48))
    ids = torch.tensor([[*prompt, *first, *second, 0, 0]])
    positions = torch.tensor([[*range(9), *range(9, 21), *range(9, 17), 0, 0]])
    mask = torch.ones(31, 31, dtype=torch.bool).tril()
    mask[21:29, 9:21] = False  # the second response does not see the first
    mask[29:] = torch.eye(31, dtype=torch.bool)[29:]
    got = ours.logits(ours(ModelInput(ids, positions, mask.unsqueeze(0))))[0]
    for response, start in ((first, 9), (second, 21)):
        alone = theirs(torch.tensor([[*prompt, *response]])).logits[0, 9:]
        torch.testing.assert_close(got[start : start + len(response)], alone, rtol=0, atol=1e-4)


@torch.no_grad()
def test_long_rows_with_a_window_take_the_other_attention():
    # Beyond 256 tokens attention on the CPU is one fused call.
    ours, theirs = make_pair("mistral_window")
    ids = torch.randint(0, 97, (2, 300), generator=torch.Generator().manual_seed(4))
    got, expected = ours.logits(ours(ModelInput(ids, positions_of(ids)))), theirs(ids).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}, "dynamic"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"attention_dropout": 0.1}, "dropout"),
    ],
)
def test_what_would_change_the_computation_is_refused(tmp_path, change, reason):
    config = json.loads((tiny_model(tmp_path) / "config.json").read_text())
    with pytest.raises(Unsupported, match=reason):
        read_architecture(config | change)


def test_old_and_new_spelling_of_rope_settings_mean_the_same(tmp_path):
    config = json.loads((tiny_model(tmp_path) / "config.json").read_text())
    new = read_architecture(config | {"rope_parameters": LLAMA3_ROPE})
    old_scaling = {k: v for k, v in LLAMA3_ROPE.items() if k != "rope_theta"}
    del config["rope_parameters"]
    old = read_architecture(config | {"rope_theta": 10000.0, "rope_scaling": old_scaling})
    assert new == old
    assert new.inverse_frequencies() == old.inverse_frequencies()


def test_a_length_beside_the_yarn_settings_goes_before_one_inside(tmp_path):
    config = json.loads((tiny_model(tmp_path) / "config.json").read_text())
    config |= {"rope_parameters": YARN_ROPE, "max_position_embeddings": 64}
    assert read_architecture(config).rope_yarn.original_max_positions == 16
    beside = config | {"original_max_position_embeddings": 32}
    assert read_architecture(beside).rope_yarn.original_max_positions == 32
    bare = {k: v for k, v in YARN_ROPE.items() if k != "original_max_position_embeddings"}
    yarn = read_architecture(config).rope_yarn._replace(original_max_positions=64)
    assert read_architecture(config | {"rope_parameters": bare}).rope_yarn == yarn


def windows_of(config):
    architecture = read_architecture(config)
    return architecture.sliding_window, architecture.windowed_layers


def test_sliding_window_counts_only_where_a_layer_uses_it():
    base = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "sliding_window": 8, **SMALL}
    assert windows_of(base) == (None, ())
    used = base | {"use_sliding_window": True, "max_window_layers": 1}
    assert windows_of(used) == (8, (1,))
    assert windows_of(used | {"max_window_layers": 2}) == (None, ())
    assert windows_of(used | {"layer_types": ["full_attention"] * 2}) == (None, ())
    assert windows_of(used | {"layer_types": ["sliding_attention", "full_attention"]}) == (8, (0,))
    assert windows_of(base | {"model_type": "llama"}) == (None, ())
    assert windows_of(base | {"model_type": "mistral"}) == (8, (0, 1))
    with pytest.raises(Unsupported, match="use_sliding_window"):
        read_architecture(base | {"layer_types": ["sliding_attention"] * 2})


def test_rows_within_the_window_need_no_mask():
    ours, _ = make_pair("mistral_window")
    assert ours._window_mask(torch.arange(6).unsqueeze(0), None) is None
    assert ours._window_mask(torch.arange(7).unsqueeze(0), None).sum() == 7 * 8 // 2 - 1
