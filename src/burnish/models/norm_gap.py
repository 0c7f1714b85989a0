"""How much longer a model's hidden states are than the embeddings it reads (GAP's diagnosis).

    gap = measure_norm_gap(module, lambda: module(inputs), mask_RS)
    gap.ratio, gap.layers[-1].largest, gap.line()

In a Pre-Norm decoder the residual stream grows with depth. A hidden state that is fed back as the next
input ("output as input", as latent reasoning does) is then far longer than anything the model was
trained to read. Works on any model with a list of layers; of two streams, Y is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from burnish.errors import ArgumentError
from burnish.models.norm_report import find_layers, streams_after, streams_before

WIDE = 3.0
"""Times the embeddings' length from which on hidden states are called out of range."""


class Lengths(NamedTuple):
    """Lengths of the vectors of a text's tokens at one place of a model."""

    mean: float
    first: float
    """Of the first token, which many models make far longer than all others."""
    rest: float | None
    """Mean without the first token; None for a text of one."""
    largest: float


class NormGap(NamedTuple):
    """A model on one text."""

    embedding: Lengths
    """What enters the first layer."""
    layers: list[Lengths]
    """Behind each layer."""
    normed: Lengths | None
    """Behind the final norm; None where the pass gave something else."""
    vocabulary: float | None
    """Mean length of all rows of the embedding table; None where none was given."""
    tokens: int

    @property
    def ratio(self) -> float:
        """The last layer's mean length over that of the embeddings: what GAP reports."""
        return self.layers[-1].mean / self.embedding.mean

    @property
    def rest_ratio(self) -> float | None:
        """The same without the first token."""
        last, first = self.layers[-1].rest, self.embedding.rest
        return None if last is None or not first else last / first

    @property
    def normed_ratio(self) -> float | None:
        """Behind the final norm."""
        return None if self.normed is None else self.normed.mean / self.embedding.mean

    @property
    def is_wide(self) -> bool:
        """Whether hidden states are out of the range of what the model reads; the first token apart."""
        ratio = self.ratio if self.rest_ratio is None else self.rest_ratio
        return not 1 / WIDE <= ratio <= WIDE

    def line(self) -> str:
        """What it means."""
        ratio = self.ratio if self.rest_ratio is None else self.rest_ratio
        told = f"hidden states are {ratio:.3g} times as long as what the model reads: "
        if not self.is_wide:
            return f"{told}they can be fed back as they are"
        return (
            f"{told}fed back as they are they lie outside of it; latents need a head (pca, linear) or "
            "ema_norm"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "tokens": self.tokens,
            "vocabulary": self.vocabulary,
            "embedding": self.embedding._asdict(),
            "layers": [layer._asdict() for layer in self.layers],
            "normed": None if self.normed is None else self.normed._asdict(),
            "ratio": self.ratio,
            "rest_ratio": self.rest_ratio,
            "normed_ratio": self.normed_ratio,
            "meaning": self.line(),
        }


@torch.no_grad()
def measure_norm_gap(
    model: nn.Module, run: Callable[[], Any], table_VD: Tensor | None = None
) -> NormGap:
    """Measure one forward pass, `run()`, over one row of tokens; `table_VD` is the embedding table.

    >>> from burnish.models.siamesenorm import new_model
    >>> model, ids = new_model(num_hidden_layers=4), torch.tensor([[1, 2, 3, 4]])
    >>> gap = measure_norm_gap(model, lambda: model.model(ids).last_hidden_state)
    >>> len(gap.layers), gap.tokens, gap.ratio > 1
    (4, 4, True)
    """
    lengths: list[Tensor] = []
    start: list[Tensor] = []
    hooks = []

    def see(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before = streams_before(module, args, kwargs)
        if not start:
            start.append(_lengths(before.x if before.y is None else before.y))
        after = streams_after(output)
        lengths.append(_lengths(after.x if after.y is None else after.y))

    for layer in find_layers(model)[1]:
        hooks.append(layer.register_forward_hook(see, with_kwargs=True))
    try:
        found = run()
    finally:
        for hook in hooks:
            hook.remove()
    if not lengths or not len(start[0]):
        raise ArgumentError("run: no layer saw a token; expected a forward pass over a text")
    normed = _told(_lengths(found)) if isinstance(found, Tensor) else None
    vocabulary = None if table_VD is None else float(table_VD.float().norm(dim=-1).mean())
    report = NormGap(
        _told(start[0]), [_told(one) for one in lengths], normed, vocabulary, len(start[0])
    )
    values = torch.cat([start[0], *lengths])
    if not values.isfinite().all() or not report.embedding.mean > 0:
        place = next((i for i, one in enumerate(lengths) if not one.isfinite().all()), None)
        where = "the embeddings" if place is None else f"layer {place + 1}"
        raise ArgumentError(
            f"{where}: vectors that are no numbers or all 0; expected a sound model"
        )
    return report


def _lengths(vectors: Tensor | None) -> Tensor:
    """(N,) of vectors (..., D)."""
    assert vectors is not None
    lengths: Tensor = vectors.detach().double().norm(dim=-1)
    return lengths.flatten()


def _told(lengths_N: Tensor) -> Lengths:
    rest = float(lengths_N[1:].mean()) if len(lengths_N) > 1 else None
    return Lengths(float(lengths_N.mean()), float(lengths_N[0]), rest, float(lengths_N.max()))
