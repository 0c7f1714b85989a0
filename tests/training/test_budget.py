"""How many tokens one pass may hold."""

import torch

from burnish.lm import load_model
from burnish.training.budget import (
    CPU_TOKENS,
    MOST_TOKENS,
    Sizes,
    activation_bytes_per_token,
    decoder_sizes,
    pass_tokens,
    tokens_within,
)
from burnish.training.packing import ROW_TOKENS

SMOLLM2 = Sizes(layers=30, hidden=576, intermediate=1536, kv_width=192, bytes_per_value=2)


def test_bytes_of_a_token_by_hand():
    assert activation_bytes_per_token(SMOLLM2) == 30 * 2 * (6 * 576 + 2 * 192 + 4 * 1536)


def test_a_step_of_64_by_8_by_32_is_one_pass_of_a_large_gpu():
    assert tokens_within(130 * 2**30, SMOLLM2) > 64 * (40 + 8 * 32)


def test_more_memory_holds_more_within_bounds():
    sizes = [tokens_within(free * 2**30, SMOLLM2) for free in (1, 12, 24, 80, 4000)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (ROW_TOKENS, MOST_TOKENS)
    assert len(set(sizes)) == 5


def test_a_decoder_knows_its_sizes_and_a_cpu_its_constant():
    model = load_model("tiny", dtype="float32", device="cpu").module
    sizes = decoder_sizes(model)
    layer = model.model.layers[0]
    assert sizes.layers == len(model.model.layers)
    assert (sizes.intermediate, sizes.hidden) == tuple(layer.mlp.gate_proj.weight.shape)
    assert sizes.kv_width == layer.self_attn.k_proj.weight.shape[0]
    assert sizes.bytes_per_value == 4
    assert pass_tokens(model, torch.device("cpu")) == CPU_TOKENS
