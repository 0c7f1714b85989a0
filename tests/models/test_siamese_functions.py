"""SiameseNorm's functions against plain numpy, and what the paper says of them."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from burnish.models.siamesenorm import (
    siamese_block,
    siamese_dit_block,
    siamese_paper,
    siamese_trunk,
)

D = 4
Array = NDArray[np.float64]
RNG = np.random.default_rng(7)
W1, W2, W3, W4 = (RNG.normal(size=(D, D)) * 0.5 for _ in range(4))
H = RNG.normal(size=(2, 3, D))
H2 = RNG.normal(size=(2, 3, D))


def rms(x: Array, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


def layer(x: Array, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-6) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def assert_near(got: torch.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("index", [0, 3, 11])
def test_post_pre_block_is_the_released_deit_block(index):
    names = ("first_x", "first_y", "first_in", "second_x", "second_y", "second_in")
    norms = {n: {"weight": RNG.normal(size=D), "bias": RNG.normal(size=D)} for n in names}

    def ln(name: str, x: Array) -> Array:
        return layer(x, norms[name]["weight"], norms[name]["bias"])

    s = 1 / np.sqrt(2 * (index + 1))
    x, y = H, H2
    for part, matrix in (("first", W1), ("second", W2)):
        x = ln(f"{part}_x", x)
        update = ln(f"{part}_in", x + ln(f"{part}_y", y)) @ matrix.T
        x, y = x + s * update, y + update
    got = siamese_block(
        X=H,
        Y=H2,
        first=W1,
        second=W2,
        norms=norms,
        block_index=index,
        layout="post_pre",
        norm="layer",
        eps=1e-6,
    )
    assert_near(got.X, x)
    assert_near(got.Y, y)


def test_hybrid_pre_block_is_the_released_olmo_block():
    scale, weight = RNG.normal(size=D), RNG.normal(size=D)
    norms: dict[str, Any] = {
        "first_x_scale": {"weight": scale},
        "second_x": {"weight": weight},
        "second_in": None,
    }
    s = 1 / np.sqrt(2 * 3)
    update = (scale * H + rms(H2)) @ W1.T
    x, y = H + s * update, H2 + update
    x = rms(x, weight)
    update = rms(x + rms(y)) @ W2.T
    x, y = x + s * update, y + update
    got = siamese_block(H, H2, W1, W2, norms, 2, "hybrid_pre", "rms", 1e-5)
    assert_near(got.X, x)
    assert_near(got.Y, y)
    bare = {"first_x_scale": scale, "second_x": {"weight": weight}}
    again = siamese_block(H.tolist(), H2, W1.tolist(), W2, bare, 2, "hybrid_pre")
    assert_near(again.X, x)


@pytest.mark.parametrize("layout", ["post_pre", "hybrid_pre"])
def test_trunk_is_its_blocks_and_three_norms(layout):
    sublayers = [W1, W2, W3, W4]
    got = siamese_trunk(H=H, sublayers=sublayers, layout=layout, norm="layer", eps=1e-6)
    x = y = torch.tensor(H)
    for index in range(2):
        first, second = sublayers[2 * index : 2 * index + 2]
        x, y = siamese_block(x, y, first, second, None, index, layout, "layer", 1e-6)
        torch.testing.assert_close(got.streams[index].X, x)
        torch.testing.assert_close(got.streams[index].Y, y)
    assert_near(got.output, layer(layer(x.numpy()) + layer(y.numpy())))
    pairs = siamese_trunk(H, [(W1, W2), (W3, W4)], layout, "layer", 1e-6)
    assert torch.equal(pairs.output, got.output)
    stacked = siamese_trunk(H, np.stack(sublayers).reshape(2, 2, D, D), layout, "layer", 1e-6)
    assert torch.equal(stacked.output, got.output)


def test_dit_block_modulates_the_fused_sum():
    cond = RNG.normal(size=(2, 5))
    weight, bias = RNG.normal(size=(6 * D, 5)), RNG.normal(size=6 * D)
    modulation = (cond / (1 + np.exp(-cond))) @ weight.T + bias
    shift1, scale1, gate1, shift2, scale2, gate2 = np.split(modulation[:, None], 6, axis=-1)
    x, y, s = H, H2, 1 / np.sqrt(2 * 4)
    for matrix, shift, scale, gate in ((W1, shift1, scale1, gate1), (W2, shift2, scale2, gate2)):
        x = layer(x)
        z = layer(x + layer(y))
        update = gate * (((1 + scale) * z + shift) @ matrix.T)
        x, y = x + s * update, y + update
    got = siamese_dit_block(
        X=H, Y=H2, cond=cond, first=W1, second=W2, W_mod=weight, b_mod=bias, block_index=3, eps=1e-6
    )
    assert_near(got.X, x)
    assert_near(got.Y, y)
    zero = siamese_dit_block(H, H2, cond, W1, W2, np.zeros((6 * D, 5)), np.zeros(6 * D), 0)
    assert_near(zero.Y, H2)
    assert_near(zero.X, layer(layer(H)))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_paper_algorithm_in_four_settings(normalized, scaled):
    x, y = H, H
    seen = []
    for index, matrix in enumerate((W1, W2, W3)):
        z = x + rms(y)
        update = (rms(z) if normalized else z) @ matrix.T
        s = 1 / np.sqrt(index + 1) if scaled else 1.0
        x, y = rms(x + s * update), y + update
        seen.append((x, y))
    got = siamese_paper(
        H=H, sublayers=[W1, W2, W3], normalized_input=normalized, depth_scaling=scaled, eps=1e-5
    )
    assert_near(got.output, x + rms(y))
    for pair, (x, y) in zip(got.streams, seen, strict=True):
        assert_near(pair.X, x)
        assert_near(pair.Y, y)


def test_without_y_it_is_post_norm_and_without_x_pre_norm():
    post = pre = H
    for matrix in (W1, W2, W3):
        post = rms(post + post @ matrix.T)
        pre = pre + rms(pre) @ matrix.T
    got = siamese_paper(H, [W1, W2, W3], False, False, y_gain=0.0)
    assert_near(got.output, post)
    got = siamese_paper(H, [W1, W2, W3], False, True, x_gain=0.0, x_start="zero")
    assert_near(got.output, rms(pre))


def test_jacobian_of_a_sublayer_is_the_block_formula():
    x, y = torch.tensor(H[0, 0]), torch.tensor(H2[0, 0])
    matrix = torch.tensor(W1)

    def norm(v: torch.Tensor) -> torch.Tensor:
        return v * torch.rsqrt(v.square().mean() + 1e-5)

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Two streams that differ: the second sublayer of a run whose first made them so.
        norms = {"first_x": None}
        got = siamese_block(x, y, matrix, torch.zeros(D, D), norms, 0, "hybrid_pre", "rms", 1e-5)
        return got.X, got.Y

    jacobian = torch.autograd.functional.jacobian
    (xx, xy), (yx, yy) = jacobian(step, (x, y))
    eye = torch.eye(D, dtype=torch.float64)
    s = 2**-0.5
    fused = x + norm(y)
    inner = x + s * (fused @ matrix.T)
    of_x, of_y = jacobian(norm, inner), jacobian(norm, y)
    torch.testing.assert_close(xx, of_x @ (eye + s * matrix))
    torch.testing.assert_close(xy, s * of_x @ matrix @ of_y)
    torch.testing.assert_close(yx, matrix)
    torch.testing.assert_close(yy, eye + matrix @ of_y)


def test_paper_jacobian_over_the_stacked_state():
    h = torch.tensor(H[0, 0])
    matrix = torch.tensor(W1)

    def norm(v: torch.Tensor) -> torch.Tensor:
        return v * torch.rsqrt(v.square().mean() + 1e-5)

    def last(h: torch.Tensor) -> torch.Tensor:
        pair = siamese_paper(h, [matrix], False, False).streams[0]
        return torch.cat((pair.X, pair.Y))

    got = torch.autograd.functional.jacobian(last, h)
    eye = torch.eye(D, dtype=torch.float64)
    of_x = torch.autograd.functional.jacobian(norm, h + (h + norm(h)) @ matrix.T)
    of_y = torch.autograd.functional.jacobian(norm, h)
    rows = (
        torch.cat((of_x @ (eye + matrix), matrix)),
        torch.cat((of_x @ matrix @ of_y, eye + matrix @ of_y)),
    )
    torch.testing.assert_close(got, rows[0] + rows[1])


def test_without_sublayers_y_stays_and_x_is_its_norm():
    zero = torch.zeros(D, D)
    output, streams = siamese_trunk(H, [zero] * 6)
    assert_near(streams[-1].Y, H)
    np.testing.assert_allclose(streams[-1].X.numpy(), rms(H), rtol=1e-3)
    np.testing.assert_allclose(output.numpy(), rms(rms(H) + rms(H)), rtol=1e-3)


def test_x_does_not_feel_the_size_of_the_embedding():
    one = siamese_trunk(H, [W1, np.zeros((D, D))], eps=1e-12)
    ten = siamese_trunk(10 * H, [W1, np.zeros((D, D))], eps=1e-12)
    assert_near(ten.streams[0].X, one.streams[0].X.numpy())
    # The update is the same, and Y carries ten times the embedding.
    assert_near(ten.streams[0].Y - one.streams[0].Y, 9 * H)


def test_zero_rows_have_finite_gradients():
    # Each norm of a row of zeros multiplies its gradient by eps ** -0.5, so depth is bounded where
    # such a row counts; where it does not, as padding, it is not.
    generator = torch.Generator().manual_seed(3)
    matrices = [torch.randn(8, 8, generator=generator) * 0.1 for _ in range(24)]
    for count, rows in ((6, slice(None)), (24, slice(1, None))):
        h = torch.zeros(1, 2, 8)
        h[0, 1] = torch.arange(8) if count == 24 else 0
        h.requires_grad_()
        output, _ = siamese_trunk(h, matrices[:count])
        output[:, rows].sum().backward()
        assert h.grad is not None
        assert bool(h.grad.isfinite().all())


def test_x_keeps_its_length_and_y_grows_on_average():
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(64, 32, generator=draw, dtype=torch.float64)
    matrices = [torch.randn(32, 32, generator=draw, dtype=torch.float64) for _ in range(12)]
    pairs = siamese_paper(h, matrices, True, True, x_gain=0.7).streams
    sizes = [float(h.norm(dim=-1).mean())]
    for pair in pairs:
        assert torch.allclose(pair.X.norm(dim=-1), torch.tensor(0.7 * 32**0.5).double(), rtol=1e-4)
        sizes.append(float(pair.Y.norm(dim=-1).mean()))
    assert sizes == sorted(sizes)
    assert sizes[-1] > 2 * sizes[0]
