"""The sampling mathematics: filters by hand, draws by chi-square."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from burnish.lm.base import Sampling
from burnish.lm.sampling import (
    draw,
    keep_only,
    locate,
    row_seed,
    row_settings,
    top_logprobs,
    uniforms,
)

CPU = torch.device("cpu")


def kept_under(weights, **options):
    rows = row_settings([Sampling(**options)], len(weights), CPU)
    kept = keep_only(torch.tensor([weights]), rows)[0]
    return [i for i, w in enumerate(kept.tolist()) if w > 0]


def test_filters_by_hand():
    weights = [0.1, 0.5, 0.15, 0.25]
    assert kept_under(weights, top_k=2) == [1, 3]
    assert kept_under(weights, top_p=0.5) == [1]
    assert kept_under(weights, top_p=0.51) == [1, 3]
    assert kept_under(weights, top_p=0.9) == [1, 2, 3]
    assert kept_under(weights, min_p=0.3) == [1, 2, 3]
    assert kept_under(weights, min_p=0.31) == [1, 3]
    assert kept_under(weights, top_k=3, top_p=0.8) == [1, 3]  # 0.5 + 0.25 of 0.9 reach 0.8
    assert kept_under(weights, top_k=9) == [0, 1, 2, 3]
    assert kept_under([0.25] * 4, top_k=2) == [0, 1]  # ties: lower ids
    assert kept_under(weights, top_p=1e-9) == [1]


def test_rows_with_and_without_filters_share_a_batch():
    weights = torch.tensor([[0.1, 0.5, 0.15, 0.25]] * 4)
    rows = [Sampling(), Sampling(top_k=1), Sampling(top_p=0.6), Sampling(min_p=0.3)]
    kept = keep_only(weights, row_settings(rows, 4, CPU)) > 0
    assert kept.sum(dim=1).tolist() == [4, 1, 2, 3]


def test_inverse_of_the_cumulative_distribution_by_hand():
    weights = torch.tensor([[1.0, 0.0, 2.0, 1.0]])
    expected = {0.0: 0, 0.24: 0, 0.25: 2, 0.74: 2, 0.75: 3, 0.9999999: 3, 1.0: 3}
    for u, token in expected.items():
        assert locate(weights, torch.tensor([[u]])).item() == token, u


@given(
    st.lists(st.sampled_from([0.0, 1e-30, 0.3, 1.0, 7.0]), min_size=1, max_size=700).filter(any),
    st.floats(0, 1, width=32),
)
@settings(max_examples=150, deadline=None)
def test_a_token_of_weight_zero_is_never_drawn(weights, u):
    token = locate(torch.tensor([weights]), torch.tensor([[u]])).item()
    assert weights[token] > 0
    total = math.fsum(weights)
    assert math.fsum(weights[:token]) <= u * total + 1e-5 * total
    assert math.fsum(weights[: token + 1]) >= u * total - 1e-5 * total


def chi_square(counts, probabilities):
    total = sum(counts)
    pairs = zip(counts, probabilities, strict=True)
    return sum((n - total * p) ** 2 / (total * p) for n, p in pairs)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature):
    logits = torch.randn(600, generator=torch.Generator().manual_seed(5)) * 1.5
    sampling = Sampling(temperature=temperature, seed=11)
    draws = 50_000
    rows = row_settings([sampling], 600, CPU)
    u = uniforms(torch.tensor([row_seed(sampling, 0)]), draws)[0]
    drawn = draw(logits.expand(draws, -1), rows, u)
    probabilities = (logits.double() / temperature).softmax(-1)
    big = probabilities > 20 / draws
    counts = torch.bincount(drawn.tokens_B, minlength=600)
    cells = [*counts[big].tolist(), int(counts[~big].sum())]
    expected = [*probabilities[big].tolist(), float(probabilities[~big].sum())]
    freedom = len(cells) - 1
    # Mean of chi-square is its freedom, its variance twice that: five deviations.
    assert abs(chi_square(cells, expected) - freedom) < 5 * math.sqrt(2 * freedom)
    logprobs = (logits / temperature).log_softmax(-1)[drawn.tokens_B]
    assert torch.allclose(drawn.logprobs_B, logprobs, atol=1e-5)


def test_logprob_is_of_the_distribution_before_filters_and_greedy_is_untempered():
    logits = torch.tensor([[1.0, 3.0, 2.0]] * 2)
    rows = row_settings([Sampling(temperature=0.5, top_k=1), Sampling(temperature=0)], 3, CPU)
    drawn = draw(logits, rows, torch.tensor([0.99, 0.0]))
    assert drawn.tokens_B.tolist() == [1, 1]
    expected = [(logits[0] / 0.5).log_softmax(-1)[1], logits[1].log_softmax(-1)[1]]
    assert torch.allclose(drawn.logprobs_B, torch.stack(expected))


def test_alternatives_are_ordered_and_tempered():
    rows = row_settings([Sampling(temperature=2.0)], 3, CPU)
    values, ids = top_logprobs(torch.tensor([[0.0, 4.0, 2.0]]), rows, 2)
    assert ids.tolist() == [[1, 2]]
    assert torch.allclose(values, torch.tensor([[0.0, 2.0, 1.0]]).log_softmax(-1)[:, [1, 2]])


def test_uniforms_depend_on_seed_and_index_alone():
    def of(sampling, index, steps=8):
        return uniforms(torch.tensor([row_seed(sampling, index)]), steps)[0]

    first = of(Sampling(seed=1), 0)
    assert torch.equal(first, of(Sampling(seed=1, temperature=0.3), 0))
    assert torch.equal(first[:5], of(Sampling(seed=1), 0, 5))
    assert not torch.equal(first, of(Sampling(seed=1), 1))
    assert not torch.equal(first, of(Sampling(seed=2), 0))


def test_uniforms_are_splitmix64():
    """Against the generator's definition in unbounded integers."""

    def by_hand(seed, step):
        word = 2**64 - 1
        z = (seed + step * 0x9E3779B97F4A7C15) & word
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        return ((z ^ (z >> 31)) >> 40) / 2**24

    seeds = [0, 1, 2**63 - 1, 1234567890123456789]
    expected = [[by_hand(seed, step) for step in range(1, 6)] for seed in seeds]
    assert uniforms(torch.tensor(seeds), 5).tolist() == expected


def test_uniforms_are_even():
    """Mean, spread and correlation over steps and over neighbouring seeds, within five deviations."""
    u = uniforms(torch.arange(500), 400).double()
    deviation = (u.numel() / 12) ** -0.5 / 12
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / u.numel()) ** 0.5
    centred = u - 0.5
    for a, b in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])):
        assert abs(float((a * b).mean())) < 5 * deviation
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
