"""The Hugging Face model over six topologies: saved, cached, checkpointed, adapted."""

from typing import Any

import pytest
import torch
import transformers

from burnish.errors import ArgumentError
from burnish.lm import load_model, save_model
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import write_byte_tokenizer
from burnish.models.blocks import TOPOLOGIES, Topology
from burnish.models.siamesenorm import SiameseNormConfig, SiameseNormForCausalLM, new_model

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))


def model_of(topology: str, **changes: Any) -> SiameseNormForCausalLM:
    model = new_model(seed=3, **SIZES | {"norm_topology": topology} | changes)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms that differ, or a mixed-up pair would not show
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_saved_model_is_the_same_model(topology, tmp_path):
    model = model_of(topology)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is SiameseNormForCausalLM
    assert again.config.topology == model.config.topology
    assert torch.equal(model(IDS).logits, again(IDS).logits)
    trunk = transformers.AutoModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(trunk(IDS)[0], model.model(IDS)[0])


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_cached_steps_are_one_pass(topology):
    model = model_of(topology)
    kept: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 8}
    cached = model.generate(IDS, **kept)
    assert torch.equal(cached, model.generate(IDS, use_cache=False, **kept))
    head = model(IDS[:, :5], use_cache=True)
    tail = model(IDS[:, 5:], past_key_values=head.past_key_values)
    whole = model(IDS).logits
    torch.testing.assert_close(
        torch.cat((head.logits, tail.logits), 1), whole, atol=1e-5, rtol=1e-5
    )
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    padded = model(IDS, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    torch.testing.assert_close(padded[0, 4:], model(IDS[:1, 4:]).logits[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_checkpointed_gradients_are_the_plain_ones(topology):
    gradients = []
    for is_checkpointed in (False, True):
        model = model_of(topology).train()
        if is_checkpointed:
            model.model.layers.gradient_checkpointing = True
        model(IDS, labels=IDS).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.equal(plain, checkpointed)
        assert bool(plain.isfinite().all())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_by_formula(topology, tied):
    c = model_of(topology, tie_word_embeddings=tied).config
    d, layers, head = c.hidden_size, c.num_hidden_layers, c.head_dim
    attention = 2 * d * d + 2 * d * c.num_key_value_heads * head
    base = c.vocab_size * d * (1 if tied else 2) + layers * (
        attention + 3 * d * c.intermediate_size
    )
    norms = {
        "pre": (2 * layers + 1) * d,
        "post": 2 * layers * d,
        "peri": (4 * layers + 1) * d,
        "hybrid": (layers + 1) * d + 3 * layers * head,
        "siamese_post_pre": (6 * layers + 3) * d,
        "siamese_hybrid_pre": (5 * layers + 3) * d + 3 * layers * head,
    }
    assert model_of(topology, tie_word_embeddings=tied).num_parameters() == base + norms[topology]


def test_transformers_own_switch_checkpoints_the_stack():
    model = model_of("siamese").train()
    switch = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    switch()
    assert model.model.layers.gradient_checkpointing
    assert model(IDS, use_cache=True).past_key_values is None


def test_later_tokens_are_not_seen_unless_the_model_is_bidirectional():
    for is_causal in (True, False):
        model = model_of("siamese", is_causal=is_causal)
        one, two = IDS[:1], IDS[:1].clone()
        two[0, -1] = (two[0, -1] + 1) % 50
        same = torch.equal(model(one).logits[:, :-1], model(two).logits[:, :-1])
        assert same == is_causal


def test_first_weights_are_those_of_full_megatron():
    model = new_model(hidden_size=256, num_hidden_layers=8, intermediate_size=512)
    std = (2.5 * 256) ** -0.5
    layer = model.model.layers[0]
    assert float(layer.self_attn.q_proj.weight.detach().std()) == pytest.approx(std, rel=0.03)
    assert float(layer.mlp.down_proj.weight.detach().std()) == pytest.approx(std / 4, rel=0.03)
    assert float(layer.mlp.gate_proj.weight.detach().abs().max()) <= 3 * std
    assert bool((layer.mlp_norms.x_norm.weight == 1).all())
    again = new_model(hidden_size=256, num_hidden_layers=8, intermediate_size=512)
    assert torch.equal(again.model.embed_tokens.weight, model.model.embed_tokens.weight)


def test_adapters_train_and_the_rest_stays():
    import peft

    model = model_of("siamese")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "down_proj"]))
    adapted(IDS, labels=IDS).loss.backward()
    trained = [name for name, p in adapted.named_parameters() if p.grad is not None]
    assert len(trained) == 2 * 2 * 3
    assert all("lora_" in name for name in trained)


def test_streams_in_float32_carry_small_updates():
    wide, narrow = (
        model_of("siamese", residual_in_fp32=flag).to(torch.bfloat16) for flag in (True, False)
    )
    exact = model_of("siamese")
    exact.load_state_dict({k: v.float() for k, v in wide.state_dict().items()})
    seen: list[torch.dtype] = []
    wide(IDS, watch=lambda index, before, after, updates: seen.append(after.y.dtype))
    assert set(seen) == {torch.float32}
    truth = exact(IDS).logits
    gaps = [float((m(IDS).logits.float() - truth).detach().abs().mean()) for m in (wide, narrow)]
    assert gaps[0] < gaps[1] < 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"norm_topology": "siameese"}, "norm_topology: got 'siameese'"),
        ({"norm_topology": "pre", "normalized_input": True}, "normalized_input: got True"),
        ({"norm_topology": "pre", "depth_scale": "sqrt_l"}, "depth_scale: got 'sqrt_l'"),
        ({"norm_topology": "hybrid", "qkv_norm": "qk"}, "qkv_norm: got 'qk'"),
        ({"norm_topology": "siamese", "depth_scale": "linear"}, "depth_scale: got 'linear'"),
        ({"norm_topology": "pre", "norm_eps": 0.0}, "eps: got 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ArgumentError) as caught:
        SiameseNormConfig(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reward_model_is_scored_by_transformers_as_by_us(tmp_path):
    from burnish.lm.scalar_head import ScalarHead

    write_byte_tokenizer(tmp_path)
    new_model(tmp_path, **SIZES | {"vocab_size": 260, "eos_token_id": 2, "pad_token_id": 3})
    loaded = load_model(tmp_path, dtype="float32", device="cpu")
    loaded.score_head = ScalarHead(torch.randn(1, 32, generator=torch.Generator().manual_seed(1)))
    save_model(loaded, tmp_path / "scored")
    ours = load_model(tmp_path / "scored", dtype="float32", device="cpu")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "scored")
    ids = torch.tensor([[7, 8, 9, 2]])
    hidden = ours.module(ModelInput(ids, torch.arange(4).unsqueeze(0)))
    assert ours.score_head is not None
    score = hidden[0, -1] @ ours.score_head.weight[0]
    torch.testing.assert_close(theirs.eval()(ids).logits[0, 0], score, atol=1e-5, rtol=1e-4)


def test_depth_scales():
    assert Topology("siamese").x_share(7) == pytest.approx(8**-0.5)
    assert Topology("siamese", depth_scale="sqrt_l").x_share(7) == pytest.approx(8**-0.5)
    assert Topology("siamese", depth_scale="sqrt_l").x_share(6) == pytest.approx(7**-0.5)
    assert Topology("siamese", depth_scale="none").x_share(7) == 1
