"""Products over weights that lie side by side."""

import torch

from burnish.lm.joined import joined_linear, laid_side_by_side, side_by_side

SIZES = (12, 4, 4)


def weights_side_by_side():
    joined = torch.randn(sum(SIZES), 8, dtype=torch.float64)
    return [part.detach().requires_grad_(True) for part in torch.split(joined, SIZES)]


def test_one_product_and_its_gradients_equal_several():
    weights = weights_side_by_side()
    assert side_by_side(weights) is not None
    hidden = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    out = joined_linear(hidden, weights)
    expected = [hidden @ weight.t() for weight in weights]
    leaves = [hidden, *weights]
    marks = [torch.randn_like(part) for part in expected]
    for got, want in zip(out, expected, strict=True):
        torch.testing.assert_close(got, want)
    found = torch.autograd.grad(sum((o * m).sum() for o, m in zip(out, marks, strict=True)), leaves)
    wanted = torch.autograd.grad(
        sum((o * m).sum() for o, m in zip(expected, marks, strict=True)), leaves
    )
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_weights_apart_are_not_joined():
    weights = [weight.detach().clone() for weight in weights_side_by_side()]
    assert joined_linear(torch.randn(5, 8, dtype=torch.float64), weights) is None


def test_what_is_written_into_one_weight_is_in_the_product():
    weights = weights_side_by_side()
    hidden = torch.randn(5, 8, dtype=torch.float64)
    with torch.no_grad():
        weights[1].fill_(2.0)
        _, middle, _ = joined_linear(hidden, weights)
    torch.testing.assert_close(middle, 2 * hidden.sum(-1, keepdim=True).expand(5, 4))


def test_laying_weights_moves_none_of_their_numbers():
    names = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj"]
    weights = {f"model.layers.0.{name}.weight": torch.randn(4, 3) for name in names}
    laid = laid_side_by_side(weights)
    assert laid.keys() == weights.keys()
    assert all(torch.equal(laid[name], weights[name]) for name in weights)
    group = [laid[f"model.layers.0.{name}.weight"] for name in names[:3]]
    assert side_by_side(group) is not None
