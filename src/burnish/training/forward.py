"""Log-probs and entropy of trained tokens, without logits for the tokens that are not trained."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.lm.head import token_logprobs
from burnish.lm.model_input import ModelInput
from burnish.lm.plain_head import plain_head
from burnish.lm.scalar_head import ScalarHead
from burnish.training.packing import PackedBatch, scatter

CHUNK = 2048
"""Trained tokens whose logits exist at one time, where a model computes them in its own way."""


class CausalModel(Protocol):
    """What the training room needs of a model."""

    def __call__(self, inputs: ModelInput) -> Tensor:
        """Final hidden states (R, S, D)."""
        ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class TokenScores(NamedTuple):
    """Each (B, T), 0 where there is no trained token."""

    logp_BT: Tensor
    entropy_BT: Tensor
    value_BT: Tensor | None = None
    """What a value head says before the token, where one was given."""


def token_scores(
    model: CausalModel,
    batch: PackedBatch,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    head: ScalarHead | None = None,
    hidden_RSD: Tensor | None = None,
) -> TokenScores:
    """Log-prob under the tempered distribution and entropy for every trained token.

    A value `head` reads the same hidden states, those that predict the tokens. `hidden_RSD` are the
    model's states of this batch, where they are known.
    """
    if hidden_RSD is None:
        hidden_RSD = model(batch.inputs)
    hidden_ND = hidden_RSD.flatten(0, 1).index_select(0, batch.source_N)
    weight_VD = plain_head(model)
    if weight_VD is not None:
        logp_N, entropy_N = token_logprobs(
            hidden_ND,
            weight_VD,
            None,
            batch.target_N,
            temperature,
            entropy_gradient=entropy_gradient,
        )
    else:
        logp_N, entropy_N = through_logits(
            model, hidden_ND, batch.target_N, temperature, entropy_gradient
        )
    value_BT = None if head is None else scatter(head(hidden_ND), batch)
    return TokenScores(scatter(logp_N, batch), scatter(entropy_N, batch), value_BT)


def through_logits(
    model: CausalModel,
    hidden_ND: Tensor,
    target_N: Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The same through the model's own logits, a chunk of tokens at a time."""

    def piece(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = model.logits(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = logits if temperature == 1.0 else logits / temperature
        norm = logits.logsumexp(-1)
        logp = logits.gather(-1, target[:, None])[:, 0] - norm
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            probability = torch.exp(logits - norm[:, None])
            entropy = norm - (probability * logits).sum(-1)
        return logp, entropy

    pieces: list[tuple[Tensor, Tensor]] = []
    for hidden, target in zip(
        torch.split(hidden_ND, CHUNK), torch.split(target_N, CHUNK), strict=True
    ):
        if hidden_ND.shape[0] > CHUNK and torch.is_grad_enabled():
            pieces.append(checkpoint(piece, hidden, target, use_reentrant=False))
        else:
            pieces.append(piece(hidden, target))
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])
