"""The Triton kernels against plain torch: on a GPU as they are, elsewhere in Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read when the kernels are first imported.
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed; it comes with torch for CUDA")

from burnish.lm.architecture import OWN, Architecture, YarnScaling
from burnish.lm.base import Sampling
from burnish.lm.decoder import Decoder, init_weights
from burnish.lm.model_input import ModelInput
from burnish.lm.sampler.rows import Request, Row
from burnish.lm.sampler.slots import PagedCache, Slots, Variant
from burnish.lm.sampler.step import PlainOps, Plan, Stepper
from burnish.lm.sampler.triton_ops import TritonOps
from burnish.lm.sampling import Draw
from burnish.models.blocks import TOPOLOGIES, Topology

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def architecture(**changes):
    values = {
        "family": "llama",
        "vocab_size": 3000,
        "hidden_size": 48,
        "intermediate_size": 72,
        "layers": 2,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 24,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_positions": 2048,
    }
    return Architecture(**{**values, **changes})


def set_up(ops_class, *, width=4, page=16, count=5, dtype=torch.float32, **changes):
    """Slots with rows of unlike lengths, one of them done, over a cache of random numbers."""
    decoder = Decoder(architecture(**changes))
    init_weights(decoder, seed=3, std=0.3)
    decoder = decoder.to(DEVICE, dtype).requires_grad_(False)
    plan = Plan(decoder)
    pages = 1 + count * width
    cache = PagedCache(decoder.architecture, pages, page, dtype=dtype, device=DEVICE)
    generator = torch.Generator().manual_seed(5)
    for part in (cache.keys, cache.values):
        part.copy_(torch.randn(part.shape, generator=generator))
    slots = Slots(count, width, 8, decoder.architecture.vocab_size, DEVICE)
    order = torch.randperm(pages - 1, generator=generator) + 1
    tables = order.view(count, width).tolist()
    lengths = [1, 15, 16, 40, width * page - 8][:count]
    heats = (1.0, 0.5, 0.0, 1.5, 1.0)[:count]
    samplings = [Sampling(temperature=heat, max_tokens=8, seed=9) for heat in heats]
    rows = [
        Row(Request(tuple(range(n)), s), i)
        for i, (n, s) in enumerate(zip(lengths, samplings, strict=True))
    ]
    slots.fill(list(range(count)), rows, tables)
    slots.tokens.copy_(torch.arange(count) * 7)
    if count > 1:
        slots.stop([1])
    return plan, cache, slots, ops_class(plan, cache, slots), Variant.of(rows)


CONFIGS = {
    "qwen2, biases, yarn": {
        "family": "qwen2",
        "qkv_bias": True,
        "tied_head": True,
        "rope_yarn": YarnScaling(4.0, 32, 32.0, 1.0, 1.2, True),
    },
    "qwen3, normed heads": {
        "family": "qwen3",
        "qk_norm": True,
        "head_dim": 32,
        "heads": 3,
        "kv_heads": 3,
    },
    "one key head, a window longer than the rows": {
        "kv_heads": 1,
        "head_dim": 64,
        "sliding_window": 200,
        "windowed_layers": (0, 1),
    },
    "a window in the second layer": {"sliding_window": 10, "windowed_layers": (1,)},
    "a window of one token": {"sliding_window": 1, "windowed_layers": (0, 1)},
    **{topology: {"family": OWN, "topology": Topology(topology)} for topology in TOPOLOGIES[1:5]},
    "siamese_hybrid_pre": {
        "family": OWN,
        "topology": Topology("siamese_hybrid_pre"),
        "qk_norm": True,
        "v_norm": True,
    },
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_a_step_of_kernels_is_a_plain_step(changes):
    steps = {}
    for kind in (PlainOps, TritonOps):
        plan, cache, slots, ops, variant = set_up(kind, **changes)
        stepper = Stepper(plan, ops, slots, ends=(2999, 17))
        for _ in range(2):
            stepper.decode(5, variant)
        # What a row that is done draws is read by nobody.
        outputs = (slots.out_tokens, slots.out_logprobs, slots.out_raw)
        state = [*slots.written, *(out[:2, [0, 2, 3, 4]] for out in outputs)]
        steps[kind] = ([t.clone() for t in state], cache.keys.clone(), cache.values.clone())
    (plain, plain_keys, plain_values), (fast, fast_keys, fast_values) = steps.values()
    for expected, got in zip(plain, fast, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)
    # Page 0 is scratch: rows that are done leave different things there.
    torch.testing.assert_close(fast_keys[:, 1:], plain_keys[:, 1:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast_values[:, 1:], plain_values[:, 1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 1, 50])
def test_shared_keys_add_up(window):
    outs = []
    layers = () if window is None else (0,)
    for blocks in (1, 5):
        plan, _, _, ops, variant = set_up(
            TritonOps, width=8, sliding_window=window, windowed_layers=layers
        )
        ops.begin(5, variant._replace(key_blocks=blocks))
        qkv = torch.randn(5, 10 * 24, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        outs.append(ops.attend(0, plan.layers[0], qkv))
        assert ops.shares == blocks
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [3, 2048, 2049, 5000])
def test_draws_agree_with_the_plain_ones(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(5, vocabulary, generator=generator) * 3).to(DEVICE)
    logits[0, 1] = float("-inf")
    found: list[Draw] = []
    for kind in (PlainOps, TritonOps):
        _, _, _, ops, variant = set_up(kind, vocab_size=vocabulary)
        everyone = ops.draw(logits, slice(0, 5), variant)
        some = torch.tensor([4, 2], device=DEVICE)
        picked = ops.draw(logits[[4, 2]], some, variant)
        for whole, part in zip(everyone, picked, strict=True):
            torch.testing.assert_close(part, whole[some])
        found.append(everyone)
    assert found[0].tokens_B.tolist() == found[1].tokens_B.tolist()
    for name in ("logprobs_B", "raw_logprobs_B"):
        torch.testing.assert_close(
            getattr(found[1], name), getattr(found[0], name), rtol=1e-5, atol=1e-5
        )


def test_every_token_is_drawn_as_often_as_it_should():
    """Uniform numbers split exactly as the probabilities do: at both ends of each token's part."""
    _, _, slots, ops, _ = set_up(TritonOps, vocab_size=6, count=1)
    variant = Variant.of([Row(Request((1,), Sampling()), 0)])
    logits = torch.tensor([[0.0, 1.0, float("-inf"), 2.0, -1.0, 0.5]], device=DEVICE)
    ends = logits.softmax(-1)[0].cpu().double().cumsum(0)
    margin = 1e-4
    places, expected = [], []
    for token in (0, 1, 3, 4, 5):
        low, high = float(ends[token - 1]) if token else 0.0, float(ends[token])
        places += [low + margin, (low + high) / 2, high - margin]
        expected += [token] * 3
    slots.uniforms = torch.tensor([places], device=DEVICE)
    slots.steps = len(places)
    drawn = []
    for i in range(len(places)):
        slots.drawn.fill_(i)
        drawn.append(int(ops.draw(logits, slice(0, 1), variant).tokens_B))
    assert drawn == expected


def test_a_token_without_weight_is_never_drawn():
    """The last blocks hold nothing, and the uniform number is the largest there is."""
    _, _, slots, ops, variant = set_up(TritonOps, vocab_size=5000)
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        logits = (torch.randn(5, 5000, generator=generator) * 2).to(DEVICE)
        logits[:, 2048:] = -300.0
        slots.uniforms.fill_(1 - 2**-24)
        drawn = ops.draw(logits, slice(0, 5), variant)
        assert drawn.tokens_B.max() < 2048
        assert drawn.raw_logprobs_B.min() > -100


def test_draws_over_many_blocks_follow_the_probabilities():
    _, _, slots, ops, variant = set_up(TritonOps, vocab_size=5000)
    logits = torch.full((5, 5000), float("-inf"), device=DEVICE)
    places = torch.tensor([7, 2047, 2048, 4095, 4999], device=DEVICE)
    logits[:, places] = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], device=DEVICE).log()
    expected = {0.05: 7, 0.15: 2047, 0.45: 2048, 0.7: 4095, 0.9: 4999}
    slots.temperature.fill_(1.0)
    slots.greedy.fill_(False)
    for u, token in expected.items():
        slots.uniforms.fill_(u)
        drawn = ops.draw(logits, slice(0, 5), variant)
        assert drawn.tokens_B.tolist() == [token] * 5, u


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")
def test_graphs_replay_what_the_step_computes():
    from burnish.lm.sampler.step import Graphs

    kinds = {}
    for is_captured in (False, True):
        plan, _, slots, ops, variant = set_up(TritonOps, count=4)
        stepper = Stepper(plan, ops, slots, ends=(2999,))
        decode = Graphs(stepper).decode if is_captured else stepper.decode
        with torch.inference_mode():
            for alternatives in (0, 2, 3, 2):
                slots.step.zero_()
                decode(4, variant._replace(alternatives=alternatives))
        found = [*slots.written, slots.out_tokens[:1, [0, 2, 3]], slots.out_logprobs[:1, [0, 2, 3]]]
        ids, values = stepper.alternatives(2)
        kinds[is_captured] = [*found, ids[:1, [0, 2, 3]], values[:1, [0, 2, 3]]]
    for expected, got in zip(kinds[False], kinds[True], strict=True):
        torch.testing.assert_close(got, expected)


class Bytes:
    """As much of a tokenizer as the engine asks for."""

    pad_id, eos_ids = 0, (2999,)

    def decode(self, ids):
        return " ".join(map(str, ids))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the whole engine on a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_the_engine_samples_what_a_plain_pass_and_a_packed_row_score(changes, dtype):
    """Prefill, captured steps and shares of keys against one pass over each row in float32."""
    from burnish.lm.sampler import Engine

    decoder = Decoder(architecture(**changes))
    init_weights(decoder, seed=3, std=0.1)
    decoder = decoder.to(DEVICE, dtype).requires_grad_(False)
    sampler = Engine(decoder, Bytes())
    generator = torch.Generator().manual_seed(6)
    prompts = [
        tuple(torch.randint(4, 2990, (n,), generator=generator).tolist()) for n in (1, 9, 40, 300)
    ]
    requests = [Request(p, Sampling(n=2, max_tokens=40, seed=i)) for i, p in enumerate(prompts)]
    exact = Decoder(architecture(**changes))
    exact.load_state_dict(decoder.state_dict())
    exact = exact.to(DEVICE, torch.float32)
    gaps = []
    for first, second in sampler.generate(requests):
        prompt = list(first.prompt_ids)
        for c in (first, second):
            gaps.append(gap_to_scores(exact, [prompt + list(c.token_ids)], None, c))
        ids = prompt + list(first.token_ids) + list(second.token_ids)
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        start = len(prompt) + len(first.token_ids)
        mask[start:, len(prompt) : start] = False
        gaps.append(gap_to_scores(exact, [ids], mask.unsqueeze(0), second))
    assert max(gaps) < (2e-3 if dtype == torch.float32 else 0.2)


def gap_to_scores(decoder, ids, mask, completion):
    """Mean difference of a completion's log-probs from those of the row that ends with it."""
    count, prompt = len(completion.token_ids), len(completion.prompt_ids)
    ids_1S = torch.tensor(ids, device=DEVICE)
    positions = list(range(ids_1S.shape[1]))
    positions[-count:] = range(prompt, prompt + count)
    mask = None if mask is None else mask.to(DEVICE)
    hidden = decoder(ModelInput(ids_1S, torch.tensor([positions], device=DEVICE), mask))[0]
    sources = [prompt - 1, *range(len(positions) - count, len(positions) - 1)]
    logprobs = decoder.logits(hidden[sources]).log_softmax(-1)
    own = logprobs.gather(1, ids_1S[0, -count:].unsqueeze(1)).squeeze(1)
    expected = torch.tensor(completion.raw_logprobs, device=DEVICE)
    return float((own - expected).abs().mean())


def test_logits_that_are_no_numbers_say_so():
    _, _, _, ops, variant = set_up(TritonOps, vocab_size=50)
    logits = torch.full((5, 50), float("nan"), device=DEVICE)
    drawn = ops.draw(logits, slice(0, 5), variant)
    assert all(0 <= token < 50 for token in drawn.tokens_B.tolist())
    assert drawn.logprobs_B.isnan().all()
