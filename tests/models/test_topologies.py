"""The six residual topologies against their equations, written in numpy with matrices as sublayers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from burnish.models.blocks import TOPOLOGIES, ResidualStack, Topology

Array = NDArray[np.float64]
Norm = Callable[[str, Array], Array]
"""The norm with this name."""

BLOCKS, SIZE, EPS = 3, 5, 1e-5


class Matrix(nn.Module):
    """z @ W.T."""

    def __init__(self, weight: Array) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(weight))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z @ self.weight.T


def pre(h: Array, A: list[Array], M: list[Array], norm: Norm, **_: Any) -> Array:
    y = h
    for i in range(BLOCKS):
        y = y + norm(f"{i}.self_attn_norms.y_norm", y) @ A[i].T
        y = y + norm(f"{i}.mlp_norms.y_norm", y) @ M[i].T
    return norm("final.y_norm", y)


def post(h: Array, A: list[Array], M: list[Array], norm: Norm, **_: Any) -> Array:
    """Each norm behind its sublayer; the stack names it by the sublayer that follows."""
    x = h
    for i in range(BLOCKS):
        behind = f"{i + 1}.self_attn_norms.x_norm" if i + 1 < BLOCKS else "final.x_norm"
        x = norm(f"{i}.mlp_norms.x_norm", x + x @ A[i].T)
        x = norm(behind, x + x @ M[i].T)
    return x


def peri(h: Array, A: list[Array], M: list[Array], norm: Norm, **_: Any) -> Array:
    """Peri-LN: the input and the output of every sublayer are normalised."""
    y = h
    for i in range(BLOCKS):
        for part, F in (("self_attn", A[i]), ("mlp", M[i])):
            z = norm(f"{i}.{part}_norms.y_norm", y)
            y = y + norm(f"{i}.{part}_norms.out_norm", z @ F.T)
    return norm("final.y_norm", y)


def hybrid(h: Array, A: list[Array], M: list[Array], norm: Norm, **_: Any) -> Array:
    """HybridNorm: attention reads its stream as it is, the MLP and its residual read the norm."""
    x = h
    for i in range(BLOCKS):
        middle = norm(f"{i}.mlp_norms.x_norm", x + x @ A[i].T)
        x = middle + middle @ M[i].T
    return norm("final.x_norm", x)


def siamese_post_pre(
    h: Array,
    A: list[Array],
    M: list[Array],
    norm: Norm,
    *,
    scales: Array,
    is_normalised: bool,
    **_: Any,
) -> Array:
    x = y = h
    for i in range(BLOCKS):
        for place, (part, F) in enumerate((("self_attn", A[i]), ("mlp", M[i]))):
            x = norm(f"{i}.{part}_norms.x_norm", x)
            z = x + norm(f"{i}.{part}_norms.y_norm", y)
            if is_normalised:
                z = norm(f"{i}.{part}_norms.in_norm", z)
            o = z @ F.T
            x, y = x + scales[i, place] * o, y + o
    out = norm("final.x_norm", x) + norm("final.y_norm", y)
    return norm("final.in_norm", out)


def siamese_hybrid_pre(
    h: Array,
    A: list[Array],
    M: list[Array],
    norm: Norm,
    *,
    scales: Array,
    is_normalised: bool,
    gains: dict[str, Array],
) -> Array:
    x = y = h
    for i in range(BLOCKS):
        z = gains[f"{i}.self_attn_norms.x_scale"] * x + norm(f"{i}.self_attn_norms.y_norm", y)
        o = z @ A[i].T
        x, y = x + scales[i, 0] * o, y + o
        x = norm(f"{i}.mlp_norms.x_norm", x)
        z = x + norm(f"{i}.mlp_norms.y_norm", y)
        if is_normalised:
            z = norm(f"{i}.mlp_norms.in_norm", z)
        o = z @ M[i].T
        x, y = x + scales[i, 1] * o, y + o
    out = norm("final.x_norm", x) + norm("final.y_norm", y)
    return norm("final.in_norm", out)


EQUATIONS: dict[str, Callable[..., Array]] = {
    "pre": pre,
    "post": post,
    "peri": peri,
    "hybrid": hybrid,
    "siamese_post_pre": siamese_post_pre,
    "siamese_hybrid_pre": siamese_hybrid_pre,
}
SCALES: dict[str, Array] = {
    "none": np.ones((BLOCKS, 2)),
    "sqrt_2i": np.array([[(2 * (i + 1)) ** -0.5] * 2 for i in range(BLOCKS)]),
    "sqrt_l": np.array([[(2 * i + 1) ** -0.5, (2 * i + 2) ** -0.5] for i in range(BLOCKS)]),
}
CASES: list[tuple[str, dict[str, Any]]] = [(kind, {}) for kind in TOPOLOGIES]
CASES += [
    (kind, settings)
    for kind in ("siamese_post_pre", "siamese_hybrid_pre")
    for settings in ({"depth_scale": "sqrt_l"}, {"depth_scale": "none"})
]
CASES += [("siamese_post_pre", {"normalized_input": False, "depth_scale": "sqrt_l"})]


@pytest.mark.parametrize(("kind", "settings"), CASES)
@pytest.mark.parametrize("norm_type", ["rms", "layer"])
def test_a_stack_is_its_equations(kind, settings, norm_type):
    draw = np.random.default_rng(1)
    A, M = ([draw.normal(size=(SIZE, SIZE)) for _ in range(BLOCKS)] for _ in range(2))
    pairs = [(Matrix(a), Matrix(m)) for a, m in zip(A, M, strict=True)]
    topology = Topology(kind, norm=norm_type, eps=EPS, **settings)
    stack = ResidualStack(pairs, SIZE, topology).double()
    gains: dict[str, Array] = {}
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            gains[name] = draw.normal(1.0, 0.5, size=SIZE)
            parameter.copy_(torch.from_numpy(gains[name]))
    used: set[str] = set()

    def norm(name: str, x: Array) -> Array:
        used.add(name)
        if norm_type == "layer":
            x = x - x.mean(-1, keepdims=True)
        unit = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
        return unit * gains[f"{name}.weight"] + gains.get(f"{name}.bias", 0.0)

    h = draw.normal(size=(2, 4, SIZE))
    expected = EQUATIONS[kind](
        h,
        A,
        M,
        norm,
        scales=SCALES[settings.get("depth_scale", "sqrt_2i")],
        is_normalised=settings.get("normalized_input", True),
        gains=gains,
    )
    with torch.no_grad():
        got = stack(torch.from_numpy(h)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
    # The equations read every norm that the stack has.
    assert used == {name.rpartition(".")[0] for name in gains if not name.endswith("x_scale")}
