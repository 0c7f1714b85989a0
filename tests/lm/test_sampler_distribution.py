"""Sampled tokens follow the model's distribution, and the log-probs say what they were.

Frequencies are tested by chi-square at a significance of 1e-4 with fixed seeds. Each test that
accepts comes with a wrong distribution that the same draws reject.
"""

import pytest
import torch

from burnish.lm import LocalLM, Sampling, load_model, tiny_model
from burnish.lm.decoder import init_weights
from burnish.lm.model_input import ModelInput

SIGNIFICANCE = 1e-4
DRAWS = 12_000
PROMPT = "What is 3 + 4?"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    loaded = load_model(tiny_model(tmp_path_factory.mktemp("tiny")), dtype="float32", device="cpu")
    init_weights(loaded.module, seed=2, std=0.2)
    return LocalLM(loaded)


def first_tokens(lm, prompt, **options):
    """How often each token came first, over many rows and several seeds."""
    per_seed = DRAWS // 20
    requests = [
        lm.request(prompt, Sampling(n=per_seed, max_tokens=1, seed=seed, **options))
        for seed in range(20)
    ]
    tokens = [c.token_ids[0] for completions in lm.sample_batch(requests) for c in completions]
    assert len(tokens) == DRAWS
    return torch.bincount(torch.tensor(tokens), minlength=260)


@torch.no_grad()
def next_logits(lm, ids):
    """Of the token after `ids`, (V,) in float64, from one plain pass."""
    module = lm.loaded.module
    row = torch.tensor([list(ids)])
    hidden = module(ModelInput(row, torch.arange(row.shape[1]).unsqueeze(0)))
    return module.logits(hidden)[0, -1].double()


def distribution(logits, temperature, *, top_k=0, top_p=1.0, min_p=0.0):
    """The exact distribution after the filters, one token at a time."""
    probabilities = (logits / temperature).softmax(-1).tolist()
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    kept = order[: top_k or len(order)]
    mass = sum(probabilities[token] for token in kept)
    before, within = 0.0, []
    for token in kept:
        if not within or before < top_p * mass:
            within.append(token)
        before += probabilities[token]
    floor = min_p * probabilities[within[0]]
    kept = [token for token in within if probabilities[token] >= floor]
    mass = sum(probabilities[token] for token in kept)
    exact = torch.zeros(len(probabilities), dtype=torch.float64)
    for token in kept:
        exact[token] = probabilities[token] / mass
    return exact


def p_value(counts, exact):
    """Of Pearson's chi-square; cells that expect fewer than 10 draws are put together."""
    expected = exact * counts.sum()
    if bool((counts[exact == 0] > 0).any()):
        return 0.0  # something was drawn that cannot be
    large = expected >= 10
    got = torch.cat((counts[large], counts[~large].sum().unsqueeze(0))).double()
    wanted = torch.cat((expected[large], expected[~large].sum().unsqueeze(0)))
    real = wanted > 1e-9
    statistic = ((got - wanted)[real] ** 2 / wanted[real]).sum()
    freedom = real.sum().double() - 1
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def test_p_value_of_a_worked_example():
    # 10, 20 and 30 draws where 20 each were expected: chi-square 10 with two degrees, exp(-5).
    thirds = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert p_value(torch.tensor([10, 20, 30]), thirds) == pytest.approx(0.006737947, rel=1e-6)


FILTERS = {
    "none": {},
    "top_k": {"top_k": 12},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "all": {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
}


@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_the_tempered_and_filtered_distribution(lm, name):
    prompt = lm.loaded.tokenizer.encode(PROMPT)
    options = FILTERS[name]
    counts = first_tokens(lm, prompt, temperature=0.7, **options)
    logits = next_logits(lm, prompt)
    exact = distribution(logits, 0.7, **options)
    assert int((exact > 0).sum()) >= 5  # more than a token or two is at stake
    assert p_value(counts, exact) > SIGNIFICANCE
    assert p_value(counts, distribution(logits, 0.8, **options)) < SIGNIFICANCE
    if options:
        assert int((exact > 0).sum()) < 200
        assert p_value(counts, distribution(logits, 0.7)) < SIGNIFICANCE


def test_draws_of_two_tokens_follow_the_joint_distribution(lm):
    """The second token is drawn from the cache, and its draw is independent of the first."""
    prompt = lm.loaded.tokenizer.encode(PROMPT)
    options = {"temperature": 1.5, "top_k": 5}
    requests = [
        lm.request(prompt, Sampling(n=DRAWS // 20, max_tokens=2, seed=100 + seed, **options))
        for seed in range(20)
    ]
    drawn = [c.token_ids for completions in lm.sample_batch(requests) for c in completions]
    first = distribution(next_logits(lm, prompt), 1.5, top_k=5)
    cells, exact, wrong = {}, [], []
    for token in first.nonzero()[:, 0].tolist():
        second = distribution(next_logits(lm, [*prompt, token]), 1.5, top_k=5)
        for after in second.nonzero()[:, 0].tolist():
            cells[token, after] = len(cells)
            exact.append(float(first[token] * second[after]))
            wrong.append(float(first[token]) / 5)
    assert not set(lm.loaded.tokenizer.eos_ids) & {token for token, _ in cells}
    counts = torch.bincount(torch.tensor([cells[pair] for pair in drawn]), minlength=len(cells))
    assert len(cells) == 25
    assert p_value(counts, torch.tensor(exact, dtype=torch.float64)) > SIGNIFICANCE
    assert p_value(counts, torch.tensor(wrong, dtype=torch.float64)) < SIGNIFICANCE


@torch.no_grad()
def exact_logprobs(lm, completion, temperature):
    """Of each sampled token, from one plain pass."""
    module = lm.loaded.module
    ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
    hidden = module(ModelInput(ids, torch.arange(ids.shape[1]).unsqueeze(0)))
    logits = module.logits(hidden)[0, len(completion.prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
@pytest.mark.parametrize("name", ["none", "all"])
def test_logprobs_are_those_of_a_full_pass(lm, name, temperature):
    """Tempered and before any filter; and untempered beside them."""
    prompts = [lm.loaded.tokenizer.encode(text) for text in (PROMPT, "Hi", PROMPT * 3)]
    sampling = Sampling(n=4, temperature=temperature, max_tokens=30, seed=8, **FILTERS[name])
    for completions in lm.sample_batch([lm.request(prompt, sampling) for prompt in prompts]):
        for c in completions:
            assert c.logprobs == pytest.approx(exact_logprobs(lm, c, temperature), abs=1e-5)
            assert c.raw_logprobs == pytest.approx(exact_logprobs(lm, c, 1.0), abs=1e-5)
            if temperature == 1.0:
                assert c.raw_logprobs == c.logprobs


def test_greedy_logprobs_are_untempered(lm):
    prompt = lm.loaded.tokenizer.encode(PROMPT)
    sampling = Sampling(temperature=0, max_tokens=20)
    beside = Sampling(temperature=0.5, max_tokens=20)
    c = lm.sample_batch([lm.request(prompt, sampling), lm.request(prompt, beside)])[0][0]
    exact = exact_logprobs(lm, c, 1.0)
    assert c.logprobs == pytest.approx(exact, abs=1e-5)
    assert c.raw_logprobs == pytest.approx(exact, abs=1e-5)
