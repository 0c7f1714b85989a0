"""Piece 9: terms beside the surrogate: distance to a reference model, entropy, demonstrations.

With `d = ref_logp - logp` on tokens sampled from the policy, the estimators of KL(policy || ref)
are k1 = -d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance) and
k3 = exp(d) - d - 1 (unbiased, never negative). Unbiased is the value: as a term of the loss on
freshly sampled tokens the gradient of k1 has mean 0 and that of k3 is the forward KL's; k2's is that
of KL(policy || ref). Recipes use k3, as GRPO does; k1 is for measuring.

Two ways give k1 and k3 the gradient of KL(policy || ref). A factor of the probability ratio to the
policy that sampled (DeepSeek-V3.2, arXiv 2512.02556; TRL's default), which also keeps the value
right after the policy has moved. Or `k1+` and `k3+`, which have the value of k1 and k3 and the
gradient of k2 (verl's names).

Reinforcement learning seeks modes and lets rare ones go; the likelihood of expert answers covers
them. `mode_balanced_loss` adds the two with one weight (AFRL, arXiv 2602.10006).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.arguments import as_number, as_word
from burnish.errors import ArgumentError
from burnish.policy.ratio import MAX_LOG_RATIO
from burnish.policy.tensors import (
    as_finite,
    as_logp,
    as_mask,
    check_finite,
    check_shape,
    check_tensor,
)

if TYPE_CHECKING:
    from burnish.policy.tensors import Numbers

KL_KINDS = ("k1", "k2", "k3", "k1+", "k3+")


def kl_penalty(
    logp: Numbers, ref_logp: Numbers, kind: str = "k3", *, ratio: Tensor | None = None
) -> Tensor:
    """The KL estimate of each token, differentiable in `logp`; any shape, the same for both.

    `ratio` is the probability ratio to the policy that sampled, with its gradient: a factor of the
    estimate that corrects its bias. `k1+` and `k3+` take none.
    """
    own, other = as_logp(logp, "logp"), as_logp(ref_logp, "ref_logp")
    check_finite(own, "logp")
    check_finite(other, "ref_logp")
    if ratio is not None:
        check_tensor(ratio, "ratio", "of the shape of `logp`")
        check_finite(ratio, "ratio")
    return kl_estimate(own, other, kind, ratio)


def kl_estimate(logp: Tensor, ref_logp: Tensor, kind: str, ratio: Tensor | None = None) -> Tensor:
    """`kl_penalty` inside a loss: no value is looked at, for that would wait for the device."""
    as_word("kind", kind, KL_KINDS)
    check_shape(ref_logp, "ref_logp", tuple(logp.shape))
    if ratio is not None:
        check_shape(ratio, "ratio", tuple(logp.shape))
        if kind.endswith("+"):
            raise ArgumentError(
                f"ratio: expected none with kind '{kind}', whose gradient is that of the "
                "divergence already; the ratio would add it once more"
            )
    gap = as_logp(ref_logp) - as_logp(logp)
    estimate = _estimate(gap, kind.removesuffix("+"))
    if kind.endswith("+"):
        right = gap.square() / 2
        return estimate.detach() + (right - right.detach())
    return estimate if ratio is None else estimate * ratio


def _estimate(gap: Tensor, kind: str) -> Tensor:
    """k1, k2 or k3 of `ref_logp - logp`."""
    if kind == "k1":
        return -gap
    if kind == "k2":
        return gap.square() / 2
    bounded = gap.clamp(max=MAX_LOG_RATIO)
    return torch.expm1(bounded) - bounded


def token_entropy(logits: Tensor) -> Tensor:
    """The entropy in nats of each next-token distribution: (..., V) -> (...)."""
    check_tensor(logits, "logits", "(..., V)")
    if not logits.ndim or not logits.shape[-1]:
        raise ArgumentError(f"logits: got shape {tuple(logits.shape)}, expected (..., V)")
    logp = torch.log_softmax(logits, dim=-1)
    # A logit of -inf is a forbidden token: it adds 0 to the entropy, not 0 * inf.
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)


def sft_nll(logp: Numbers, mask: Numbers, *, tokens: float | None = None) -> Tensor:
    """Mean negative log-prob of demonstration tokens, `-sum(mask logp) / sum(mask)`: (B, T) -> ().

    0 where every token is masked; what stands there never matters. `tokens` is the denominator of
    the whole batch where this is a part of it.
    """
    values = as_logp(logp, "logp")
    is_used = as_mask(mask, "mask", tuple(values.shape)).to(values.device)
    check_finite(values, "logp", is_used)
    if tokens is not None:
        as_number("tokens", tokens, low=0)
    return masked_nll(values, is_used, tokens=tokens)


def masked_nll(logp: Tensor, mask: Tensor, *, tokens: float | None = None) -> Tensor:
    """`sft_nll` inside a loss: no value is looked at, for that would wait for the device."""
    values = as_logp(logp)
    is_used = mask.to(values.device) != 0
    check_shape(is_used, "mask", tuple(values.shape))
    count = is_used.sum() if tokens is None else torch.as_tensor(tokens, device=values.device)
    return -values.masked_fill(~is_used, 0.0).sum() / count.clamp(min=1)


def mode_balanced_loss(
    rl_loss: Tensor | float, sft_logp: Numbers, sft_mask: Numbers, lam: float = 0.1
) -> Tensor:
    """`L_RL + lam * L_SFT`, with the NLL of expert tokens as `L_SFT`: (), (B, T), (B, T) -> ().

    With `lam` 0, or no expert token at all, `rl_loss` itself comes back, bit for bit.
    """
    as_number("lam", lam, low=0)
    as_number("rl_loss", rl_loss)
    total = torch.as_tensor(rl_loss)
    logp, given = as_logp(sft_logp, "sft_logp"), as_finite(sft_mask, "sft_mask")
    if not given.numel():
        return total
    is_used = as_mask(given, "sft_mask", tuple(logp.shape)).to(logp.device)
    check_finite(logp, "sft_logp", is_used)
    if lam == 0 or not bool(is_used.any()):
        return total
    return total + lam * masked_nll(logp, is_used).to(total.device)
