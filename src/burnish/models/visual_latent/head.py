"""The latent head: from a decoder's hidden state to a vector that the decoder can take as input.

Five kinds, one module, so that they can be compared:

    raw         h, the last layer's output, as it is
    normed      h behind the decoder's final norm
    ema_norm    h rescaled to the moving average of the norms of vision embeddings
    linear      a linear map of the normed state
    pca         coefficients in the subspace of vision embeddings, by a small network (GAP)

`linear` and `pca` start at the mean of the embeddings.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from burnish.boundary import Positive, PositiveInt, public_method
from burnish.errors import ArgumentError, UserError, first_line
from burnish.models.visual_latent.objective import Subspace, fit_pca, masked_mean, rescaled

if TYPE_CHECKING:
    from jaxtyping import Float64

Kind = Literal["raw", "normed", "ema_norm", "linear", "pca"]
KINDS = get_args(Kind)
CLIP = 10.0
"""Times the largest norm of the embeddings: longer predictions are cut to it in generation."""
DECAY = 0.99
"""Of the moving average of the norms of vision embeddings."""
STALE = 0.1
"""Share of the variance that a basis may lose against its own embeddings before it is called stale."""


class Hidden(NamedTuple):
    """One position's state, (..., D) each."""

    raw: Tensor
    """Behind the last layer."""
    normed: Tensor
    """Behind the decoder's final norm."""


class Predicted(NamedTuple):
    """What a head makes of a hidden state."""

    vector: Tensor
    """(..., D), in the space of input embeddings."""
    coefficients: Tensor
    """What the loss compares, (..., K): whitened coefficients of pca, else the scaled vector."""


class Guarded(NamedTuple):
    """Vectors that are safe to feed, and which of them were changed."""

    vector: Tensor
    is_clipped: Tensor


class LatentHead(nn.Module):
    """Predicts latents; its basis is part of its state and is never trained."""

    mean: Tensor
    components: Tensor
    eigenvalues: Tensor
    explained: Tensor
    norm: Tensor
    largest: Tensor

    @public_method
    def __init__(
        self,
        kind: Kind,
        basis: Subspace,
        *,
        norm: Positive,
        largest: Positive,
        inner: PositiveInt | None = None,
    ) -> None:
        """`norm` and `largest`: mean and largest norm of the embeddings; `inner`: width of pca's network."""
        super().__init__()
        self.kind = kind
        size, rank = basis.components.shape
        if not rank:
            raise ArgumentError("basis: got no components, expected embeddings that differ")
        tensors = {
            "mean": basis.mean,
            "components": basis.components,
            "eigenvalues": basis.eigenvalues,
            "explained": torch.tensor(basis.explained),
            "norm": torch.tensor(float(norm)),
            "largest": torch.tensor(float(largest)),
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().float().clone())
        self.network: nn.Module | None = None
        if kind in ("linear", "pca"):
            inner = inner or max(size // 2, 1)
            widths = (size, size) if kind == "linear" else (size, inner, rank)
            maps = [nn.Linear(*pair) for pair in pairwise(widths)]
            nn.init.zeros_(maps[-1].weight)
            nn.init.zeros_(maps[-1].bias)
            if kind == "linear":
                maps[0].bias.data.copy_(self.mean)
            self.network = (
                maps[0] if kind == "linear" else nn.Sequential(maps[0], nn.SiLU(), maps[1])
            )

    @classmethod
    @public_method
    def fit(
        cls,
        kind: Kind,
        embeddings: Float64[Tensor, "N D"],
        k: PositiveInt | None = None,
    ) -> LatentHead:
        """A head for these vision embeddings (N, D).

        >>> embeddings = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
        >>> head, h = LatentHead.fit("pca", embeddings, k=4), torch.randn(2, 16)
        >>> vector = head(Hidden(raw=h, normed=h)).vector
        >>> bool(torch.allclose(vector, head.mean.expand(2, 16)))
        True
        """
        basis = fit_pca(embeddings, k)
        norms_N = embeddings.norm(dim=1)
        return cls(kind, basis, norm=float(norms_N.mean()), largest=float(norms_N.max()))

    def forward(self, hidden: Hidden) -> Predicted:
        """(..., D) -> vectors (..., D) and what the loss compares."""
        raw, normed = (state.to(self.mean.dtype) for state in hidden)
        if self.kind == "ema_norm":
            vector = rescaled(raw, self.norm)
        elif self.network is None:
            vector = raw if self.kind == "raw" else normed
        else:
            vector = self.network(normed)
        if self.kind == "pca":
            return Predicted(self.noise(vector), vector)
        return Predicted(vector, vector * self._scale())

    def _scale(self) -> Tensor:
        """Makes the loss of the constant mean the same, K, for every kind."""
        return (len(self.eigenvalues) / (self.eigenvalues.sum() / self.explained)).sqrt()

    def targets(self, v: Tensor) -> Tensor:
        """What `coefficients` should be for target vectors (..., D); no gradient."""
        v = v.detach().to(self.mean.dtype)
        if self.kind == "pca":
            return (v - self.mean) @ self.components / self.eigenvalues.sqrt()
        return v * self._scale()

    def as_input(self, v: Tensor) -> Tensor:
        """Target vectors as training feeds them: those of pca lie in its subspace; no gradient."""
        v = v.detach().to(self.mean.dtype)
        if self.kind != "pca":
            return v
        return (v - self.mean) @ self.components @ self.components.T + self.mean

    def loss(self, found: Predicted, v: Tensor, mask: Tensor) -> Tensor:
        """Squared error of the coefficients, mean over the mask (...); 0 where it is empty."""
        return masked_mean((found.coefficients - self.targets(v)).square(), mask)

    @torch.no_grad()
    def observe(self, embeddings: Tensor) -> None:
        """Move the average of the norms of vision embeddings (..., D)."""
        if embeddings.numel():
            mean = embeddings.detach().to(self.norm.dtype).norm(dim=-1).mean()
            self.norm.mul_(DECAY).add_((1 - DECAY) * mean)

    def noise(self, draws: Tensor) -> Tensor:
        """Whitened coefficients (..., K) as vectors (..., D); of normal draws the embeddings' covariance."""
        return (draws.to(self.mean) * self.eigenvalues.sqrt()) @ self.components.T + self.mean

    def guard(self, vector: Tensor) -> Guarded:
        """Cut predictions of more than ten times the largest norm; those not finite become the mean.

        `raw` and `normed`, which are there to show what long inputs do, only lose what is not finite.
        """
        is_odd = ~vector.isfinite().all(-1)
        vector = torch.where(is_odd.unsqueeze(-1), self.mean, vector)
        if self.kind in ("raw", "normed"):
            return Guarded(vector, is_odd)
        most = CLIP * self.largest
        is_long = vector.norm(dim=-1) > most
        cut = torch.where(is_long.unsqueeze(-1), rescaled(vector, most), vector)
        return Guarded(cut, is_odd | is_long)

    @torch.no_grad()
    def stale(self, embeddings: Tensor) -> str | None:
        """One line if the basis no longer fits the embeddings (the projector was trained), else None."""
        centred_ND = embeddings.to(self.mean) - self.mean
        total = centred_ND.square().sum()
        kept = (centred_ND @ self.components).square().sum() / total if total else self.explained
        if kept >= self.explained - STALE:
            return None
        return f"the basis is stale: it holds {float(kept):.0%} of the variance; fit it again"

    def save(self, path: str | Path) -> None:
        """Write weights and basis to a safetensors file."""
        from safetensors.torch import save_file

        state = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        # One entry: safetensors writes several in an order of chance.
        about = json.dumps({"decay": DECAY, "kind": self.kind})
        save_file(state, str(path), {"latent_head": about})

    @classmethod
    def load(cls, path: str | Path) -> LatentHead:
        """Read what `save` wrote."""
        from safetensors import safe_open

        try:
            with safe_open(str(path), "pt") as file:
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                told = json.loads((file.metadata() or {}).get("latent_head", "{}"))
                explained = float(state["explained"])
                mean, components = state["mean"], state["components"]
                basis = Subspace(mean, components, state["eigenvalues"], explained)
                inner = len(state["network.0.weight"]) if told["kind"] == "pca" else None
                norms = {name: float(state[name]) for name in ("norm", "largest")}
                head = cls(told["kind"], basis, **norms, inner=inner)
                head.load_state_dict(state)
        except Exception as error:  # boundary: safetensors and torch meet whatever the file holds
            raise UserError(
                f"{path}: expected a latent head that `save` wrote: {first_line(error)}"
            ) from error
        return head
