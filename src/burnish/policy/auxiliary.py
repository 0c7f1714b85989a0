"""Piece 9: terms that stand beside the surrogate: distance to a reference model, and entropy.

With `d = ref_logp - logp` on tokens sampled from the policy, the estimators of KL(policy || ref)
are k1 = -d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance) and
k3 = exp(d) - d - 1 (unbiased, never negative). Unbiased is the value: as a term of the loss on
freshly sampled tokens the gradient of k1 has mean 0 and that of k3 is the forward KL's; k2's is that
of KL(policy || ref). Recipes use k3, as GRPO does; k1 is for measuring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.errors import did_you_mean
from burnish.policy.ratio import MAX_LOG_RATIO
from burnish.policy.tensors import as_logp

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers

KL_KINDS = ("k1", "k2", "k3")


def kl_penalty(logp: Numbers, ref_logp: Numbers, kind: str = "k3") -> Tensor:
    """The KL estimate of each token, differentiable in `logp`; any shape, the same for both."""
    if kind not in KL_KINDS:
        raise ValueError(
            f"kind: got '{kind}', expected {', '.join(KL_KINDS)}.{did_you_mean(kind, KL_KINDS)}"
        )
    gap = as_logp(ref_logp) - as_logp(logp)
    if kind == "k1":
        return -gap
    if kind == "k2":
        return gap.square() / 2
    bounded = gap.clamp(max=MAX_LOG_RATIO)
    return torch.expm1(bounded) - bounded


def token_entropy(logits: Tensor) -> Tensor:
    """The entropy in nats of each next-token distribution: (..., V) -> (...)."""
    logp = torch.log_softmax(logits, dim=-1)
    # A logit of -inf is a forbidden token: it adds 0 to the entropy, not 0 * inf.
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)
