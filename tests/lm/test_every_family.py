"""Every causal family that transformers can build tiny: a row gets the same numbers in any company.

Each is sampled in a batch of unlike prompts, alone, in one plain pass, in a padded training batch
and in a packed row, beyond its window and up to the end of its positions. Either all agree, or
burnish refuses in one line.
"""

import os
from pathlib import Path

import pytest
import torch

from burnish.errors import BoundaryError, UserError
from burnish.lm.base import Sampling
from burnish.lm.model_input import ModelInput
from burnish.lm.sampler.rows import Request

LONGEST, WINDOW = 16, 4


def words(text):
    return text.split()


SMALL = {
    # Under whichever name a family has a setting, it gets the small one.
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 97),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embedding_size", "input_embedding_size"), 32
    ),
    **dict.fromkeys(("output_embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "dff", "dim_ff"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("head_dim", "linear_head_dim", "linear_key_head_dim"), 8),
    **dict.fromkeys(("linear_value_head_dim", "index_head_dim", "dim_head"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), LONGEST),
    **dict.fromkeys(("sliding_window", "attention_window_size", "window_size"), WINDOW),
    **dict.fromkeys(("attention_chunk_size", "local_attention"), WINDOW),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "index_n_heads", "o_groups"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim"), 8),
    **dict.fromkeys(("pronunciation_vocab_size", "shape_vocab_size"), 97),
    **dict.fromkeys(("mamba_d_state", "state_size"), 4),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 8),
    "is_decoder": True,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT_FAMILIES = words(
    """
    axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa
    kimi_linear longcat_flash minicpm3 youtu hy_v4
    """
)
LATENT = {
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
STATES = {"mamba_n_heads": 8, "mamba_d_head": 8}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
OWN = {
    # What a family needs beside; None leaves a setting of SMALL out.
    **dict.fromkeys(LATENT_FAMILIES, LATENT),
    "bamba": {**STATES, "layer_types": None, "attn_layer_indices": [1], "mamba_n_groups": 1},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": MIXED,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {**STATES, "layer_types": None, "mamba_d_ssm": 64},
    "gemma3n_text": {
        **MIXED,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "hidden_size_per_layer_input": 8,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "gemma4_text": {
        **MIXED,
        "head_dim": None,
        "global_head_dim": 8,
        "hidden_size_per_layer_input": 8,
    },
    "gemma4_unified_text": {**MIXED, "head_dim": None, "global_head_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {**STATES, "layer_types": ["mamba", "attention"]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "nemotron_h": {
        "num_hidden_layers": None,
        "layer_types": None,
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 2,
    },
    "prophetnet": {"num_hidden_layers": None, "num_decoder_layers": 2, "num_encoder_layers": 2},
    "reformer": {
        "axial_pos_embds_dim": (16, 16),
        "axial_pos_shape": (2, 8),
        "attn_layers": ["local", "lsh"],
        "attention_head_size": 8,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "xlnet": {"max_position_embeddings": None},
    "zamba": {
        "num_hidden_layers": 5,
        "layer_types": None,
        "attn_layer_period": 8,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 8,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        "layer_types": None,
        "layers_block_type": ["mamba", "hybrid"],
        "hybrid_layer_ids": [1],
        "mamba_ngroups": 8,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "num_mem_blocks": 1,
    },
}
SAMPLED = words(
    """
    afmoe apertus arcee aria_text bailing_hybrid bamba bart bert-generation biogpt bitnet
    blenderbot bloom codegen cohere cohere2 cohere_compass_text ctrl dbrx deepseek_v2
    deepseek_v3 deepseek_v32 diffllama doge dots1 ernie4_5 exaone4 falcon falcon_h1 falcon_mamba
    flex_olmo gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm glm4
    glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite
    granite_swa granitemoe granitemoehybrid granitemoeshared helium hunyuan_v1_dense hy_v4 jamba
    jetmoe lfm2 lfm2_moe llama llama4_text mamba mamba2 marian mimo_v2_flash minicpm3 minimax
    minimax_m2 ministral ministral3 mistral mixtral mpt nemotron olmo olmo2 olmo3 olmo_hybrid
    olmoe openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text
    qwen3_5_text qwen3_moe qwen3_next recurrent_gemma rwkv smollm3 stablelm starcoder2 trocr
    whisper xglm zamba zamba2
    """
)
EVERYDAY = words(
    """
    bart bert bloom deepseek_v3 gemma2 gpt2 jamba lfm2 llama mamba2 mistral mixtral nemotron_h opt
    qwen3_next rwkv xlnet
    """
)
"""One of each kind of cache, position and refusal; the others are in the tier `peers`."""
FURTHER = words(
    """
    axk1 axk2 beam bigbird_pegasus blenderbot-small cohere2_moe cwm deepseek_v4 ernie4_5_moe
    exaone_moe flint gpt_neox_japanese granitemoe_swa hrm_text hunyuan_v1_moe hy_v3 hyperclovax
    jais2 kimi_linear kolibri1 laguna longcat_flash mbart mellum minimax_m3_vl_text mvp nanochat
    pegasus plbart seed_oss solar_open vaultgemma youtu
    """
)
"""Close relatives of those above, and what takes a second each."""
REFUSED = words(
    """
    bert big_bird camembert cpmant data2vec-text electra ernie inkling_text megatron-bert
    modernbert-decoder moshi nemotron_h prophetnet reformer rembert roberta roberta-prelayernorm
    roc_bert roformer xlm xlm-roberta xlm-roberta-xl xlnet xlstm xmod
    """
)
"""A head that is more than one product, two streams, chunks or states that differ in a cache."""


def longrope(**more):
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors, **more}
    rope["original_max_position_embeddings"] = 11
    return {"rope_parameters": rope, "original_max_position_embeddings": 11}


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}
STRETCHED = {
    "phi3, longrope": ("phi3", longrope()),
    "phimoe, longrope": ("phimoe", longrope(short_mscale=1.0, long_mscale=1.3)),
    "minicpm3, longrope": ("minicpm3", longrope()),
    "llama, longrope": ("llama", longrope()),
    "mixtral, longrope": ("mixtral", longrope()),
    "gemma, dynamic": ("gemma", DYNAMIC),
    "olmo2, dynamic": ("olmo2", DYNAMIC),
    "gemma3, dynamic in one kind of layer": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": DYNAMIC["rope_parameters"],
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        },
    ),
}


class Tokens:
    """As much of a tokenizer as sampling asks for."""

    pad_id, eos_ids = 0, ()

    def decode(self, ids):
        return " ".join(map(str, ids))


def build(family, settings=None):
    """The family's model with random weights, or a skip that says why there is none."""
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    # Boundary: the configs of transformers, which each version changes.
    try:
        kind = type(AutoConfig.for_model(family))
        config = kind(**small_settings(kind) | (settings or {}))
        model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        pytest.skip(f"transformers builds no tiny {family}: {type(error).__name__}: {line}")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
    model.generation_config = transformers.GenerationConfig()
    return model.eval()


def small_settings(kind):
    usual, aliases = kind(), dict(kind.attribute_map or {})
    chosen = {k: v for k, v in SMALL.items() if has(usual, k) and not is_computed(kind, k)}
    for alias, real in aliases.items():
        if alias in chosen and real in chosen:
            del chosen[alias]
    layers = getattr(usual, "layer_types", None)
    if layers is not None and not is_computed(kind, "layer_types"):
        # Two layers, of two kinds where there are several.
        chosen["layer_types"] = (list(dict.fromkeys(layers)) * 2)[:2]
    chosen |= OWN.get(kind.model_type, {})
    return {k: v for k, v in chosen.items() if v is not None}


def has(config, name):
    try:
        return hasattr(config, name)
    except RuntimeError:  # its layers differ in it
        return True


def is_computed(kind, name):
    return isinstance(getattr(kind, name, None), property)


@torch.no_grad()
def logits_alone(module, row):
    return module.model(torch.tensor([row])).logits[0].float()


def assert_scored_alike(completion, alone):
    """Sampled log-probs against one pass of the model itself over the row alone."""
    logprobs = alone[len(completion.prompt_ids) - 1 : -1].log_softmax(-1)
    expected = logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()
    assert list(completion.raw_logprobs) == pytest.approx(expected, abs=2e-3)


@torch.no_grad()
def assert_trained_alike(module, rows, alone):
    """Rows of unlike lengths in one batch, padded on the right as training pads them."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    positions = torch.tensor([[*range(len(row)), *[0] * (width - len(row))] for row in rows])
    logits = module.logits(module(ModelInput(ids, positions))).float()
    for row, got, expected in zip(rows, logits, alone, strict=True):
        torch.testing.assert_close(got[: len(row)], expected, rtol=2e-3, atol=2e-3)


@torch.no_grad()
def assert_packed_alike(module, completion):
    """Two answers behind one prompt, in a row longer than any window."""
    prompt, first = list(completion.prompt_ids), list(completion.token_ids)
    start, second = len(prompt) + len(first), first[::-1]
    ids = torch.tensor([[*prompt, *first, *second]])
    positions = torch.tensor([[*range(start), *range(len(prompt), start)]])
    mask = torch.ones(1, ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    mask[0, start:, len(prompt) : start] = False
    if not module.packs or ids.shape[1] > module.packs_up_to:
        with pytest.raises((UserError, BoundaryError), match="share_prompts = false"):
            module(ModelInput(ids, positions, mask))
        return
    logits = module.logits(module(ModelInput(ids, positions, mask)))[0].float()
    expected = logits_alone(module, [*prompt, *second])[len(prompt) :]
    torch.testing.assert_close(logits[start:], expected, rtol=2e-3, atol=2e-3)


def walk(model):
    from burnish.lm.generate import GenerateSampler
    from burnish.lm.transformers_model import TransformersDecoder

    module = TransformersDecoder(model)
    module.check(Path("folder"))
    sampler = GenerateSampler(module, Tokens())
    generator = torch.Generator().manual_seed(2)
    requests = [
        Request(
            tuple(torch.randint(4, 96, (tokens,), generator=generator).tolist()),
            Sampling(max_tokens=new, seed=tokens),
        )
        # Padded and run together, the first two would be five tokens too wide.
        for tokens, new in ((2, 9), (12, 4), (5, 2))
    ]
    completions = [c[0] for c in sampler.generate(requests)]
    rows = [[*c.prompt_ids, *c.token_ids] for c in completions]
    alone = [logits_alone(module, row) for row in rows]
    for completion, logits in zip(completions, alone, strict=True):
        assert_scored_alike(completion, logits)
    # After the others, so that a state which they leave behind would show.
    (again,) = sampler.generate([requests[-1]])[0]
    assert again.raw_logprobs[0] == pytest.approx(completions[-1].raw_logprobs[0], abs=2e-3)
    assert_trained_alike(module, rows, alone)
    assert_packed_alike(module, completions[-1])
    return completions


ON_REQUEST = pytest.mark.skipif(
    not os.environ.get("BURNISH_ALL_FAMILIES"),
    reason="close to a family that is walked, or slow; BURNISH_ALL_FAMILIES=1 walks it too",
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of old families, about themselves


def by_tier(families):
    marked = (pytest.mark.peers, ())
    return [pytest.param(family, marks=marked[family in EVERYDAY]) for family in families]


@pytest.mark.parametrize(
    "family",
    [
        *by_tier(SAMPLED),
        *(pytest.param(family, marks=[ON_REQUEST, pytest.mark.peers]) for family in FURTHER),
    ],
)
def test_a_row_gets_the_same_numbers_in_any_company(family):
    completions = walk(build(family))
    assert [len(c.token_ids) for c in completions] == [9, 4, 2]
    assert len({token for c in completions for token in c.token_ids}) > 1


@pytest.mark.parametrize(("family", "settings"), STRETCHED.values(), ids=STRETCHED)
def test_positions_that_depend_on_the_length_do_not_depend_on_the_company(family, settings):
    walk(build(family, settings))


@pytest.mark.parametrize("family", by_tier(REFUSED))
def test_what_would_not_be_exact_is_refused_in_one_line(family):
    model = build(family)
    with pytest.raises(
        (UserError, BoundaryError), match=r"over HTTP|is_decoder|fails at token"
    ) as refused:
        walk(model)
    assert "\n" not in str(refused.value)
