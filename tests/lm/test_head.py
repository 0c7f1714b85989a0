"""Log-probs and entropy from hidden states: the values and gradients of the plain formula."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.functional import linear

from burnish.lm import head
from burnish.lm.head import token_logprobs


def plain(hidden, weight, bias, target, temperature):
    logits = linear(hidden, weight, bias).double() / temperature
    logp = logits.log_softmax(-1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def case(tokens=7, vocabulary=13, size=5, dtype=torch.float64, seed=0, has_bias=True):
    draw = torch.Generator().manual_seed(seed)
    shapes = ((tokens, size), (vocabulary, size), (vocabulary,))
    made = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes]
    hidden, weight, bias = (tensor.requires_grad_(True) for tensor in made)
    target = torch.randint(vocabulary, (tokens,), generator=draw)
    return hidden, weight, bias if has_bias else None, target


def test_two_words_by_hand():
    """Logits ln 3 and 0: probabilities 3/4 and 1/4."""
    hidden = torch.tensor([[1.0]], dtype=torch.float64)
    weight = torch.tensor([[math.log(3)], [0.0]], dtype=torch.float64)
    logp, entropy = token_logprobs(hidden, weight, None, torch.tensor([1]), 1.0)
    assert logp.item() == pytest.approx(math.log(0.25), abs=1e-15)
    assert entropy.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    logp, _ = token_logprobs(hidden, weight, None, torch.tensor([0]), 0.5)
    assert logp.item() == pytest.approx(math.log(0.9), abs=1e-15)


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1, 9),
    vocabulary=st.integers(1, 40),
    chunk=st.integers(1, 12),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    has_bias=st.booleans(),
)
def test_values_and_gradients_follow_the_formula(tokens, vocabulary, chunk, temperature, has_bias):
    hidden, weight, bias, target = case(tokens, vocabulary, has_bias=has_bias)
    inputs = [t for t in (hidden, weight, bias) if t is not None]
    factors = torch.linspace(-1, 2, tokens, dtype=torch.float64)
    theirs = plain(hidden, weight, bias, target, temperature)
    ours = token_logprobs(
        hidden, weight, bias, target, temperature, entropy_gradient=True, chunk=chunk
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    sums = [(factors * (logp + 0.3 * entropy)).sum() for logp, entropy in (ours, theirs)]
    for a, b in zip(*(torch.autograd.grad(s, inputs) for s in sums), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("chunk", [3, 100])
@pytest.mark.parametrize("entropy_gradient", [True, False])
def test_gradients_follow_finite_differences(chunk, entropy_gradient):
    hidden, weight, bias, target = case()

    def work(hidden, weight, bias):
        both = token_logprobs(
            hidden, weight, bias, target, 1.7, entropy_gradient=entropy_gradient, chunk=chunk
        )
        return both if entropy_gradient else both[0]

    assert torch.autograd.gradcheck(work, (hidden, weight, bias))


def test_entropy_carries_a_gradient_only_when_asked():
    hidden, weight, bias, target = case()
    assert not token_logprobs(hidden, weight, bias, target, 1.0)[1].requires_grad
    assert token_logprobs(hidden, weight, bias, target, 1.0, entropy_gradient=True)[1].requires_grad


def test_a_second_backward_pass_gives_the_same_gradient():
    """The first one turns the kept logits into their gradient."""
    hidden, weight, bias, target = case()
    total = token_logprobs(hidden, weight, bias, target, 1.0)[0].sum()
    first = torch.autograd.grad(total, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(total, (hidden, weight))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("chunk", [4, 100])
def test_half_precision_rounds_the_logits_and_nothing_after_them(chunk):
    hidden, weight, _, target = case(9, 300, 16, torch.bfloat16)
    logp, entropy = token_logprobs(
        hidden, weight, None, target, 0.7, entropy_gradient=True, chunk=chunk
    )
    their_logp, their_entropy = plain(hidden, weight, None, target, 0.7)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp.double(), their_logp, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy.double(), their_entropy, rtol=0, atol=1e-5)
    ours = torch.autograd.grad(logp.sum() - entropy.sum(), (hidden, weight))
    exact = [t.detach().double().requires_grad_(True) for t in (hidden, weight)]
    theirs = torch.autograd.grad(
        sum(s * v.sum() for s, v in zip((1, -1), plain(*exact, None, target, 0.7), strict=True)),
        exact,
    )
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.bfloat16
        assert float((a - b).norm() / b.norm()) < 0.02


def test_logits_far_from_zero_neither_overflow_nor_vanish():
    hidden = torch.tensor([[200.0], [-200.0]])
    weight = torch.tensor([[1.0], [0.0], [-1.0]])
    logp, entropy = token_logprobs(hidden, weight, None, torch.tensor([0, 0]), 1.0)
    assert logp.tolist() == [0.0, -400.0]
    assert entropy.tolist() == [0.0, 0.0]


def test_a_number_that_is_not_finite_is_not_hidden():
    hidden, weight, _, target = case(dtype=torch.float32)
    with torch.no_grad():
        hidden[2, 0] = math.nan
    logp, _ = token_logprobs(hidden, weight, None, target, 1.0)
    assert [i for i, value in enumerate(logp.tolist()) if math.isnan(value)] == [2]


def test_no_tensor_of_all_logits_is_kept(monkeypatch):
    made = []
    real = head._logits

    def counting(*arguments):
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr(head, "_logits", counting)
    hidden, weight, _, target = case(10, 13)
    logp, _ = token_logprobs(hidden, weight, None, target, 1.0, chunk=4)
    assert [len(m) for m in made] == [4, 4, 2]
    assert all(sys.getrefcount(m) <= 3 for m in made), "a chunk outlived the forward pass"
    logp.sum().backward()
    assert [len(m) for m in made] == [4, 4, 2, 4, 4, 2]


@pytest.mark.parametrize("chunk", [2, 100])
def test_what_needs_no_gradient_gets_none(chunk):
    """A frozen head (low-rank adapters) or frozen hidden states: the other gradient is unchanged."""
    hidden, weight, _, target = case()
    whole = token_logprobs(hidden, weight, None, target, 1.0, chunk=chunk)[0].sum()
    expected = torch.autograd.grad(whole, (hidden, weight))
    for frozen in (0, 1):
        pair = [
            t.detach().clone().requires_grad_(i != frozen) for i, t in enumerate((hidden, weight))
        ]
        token_logprobs(*pair, None, target, 1.0, chunk=chunk)[0].sum().backward()
        assert pair[frozen].grad is None
        torch.testing.assert_close(pair[1 - frozen].grad, expected[1 - frozen])
