"""Auxiliary terms of the loss: KL to a reference model, entropy, and imitation of demonstrations.

With `d = ref_logp - logp` on tokens sampled from the policy, the estimators of KL(policy || ref)
are k1 = -d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance) and
k3 = exp(d) - d - 1 (unbiased, never negative). Unbiased is the value: as a term of the loss on
freshly sampled tokens the gradient of k1 has mean 0 and that of k3 is the forward KL's; k2's is that
of KL(policy || ref). Recipes use k3, as GRPO does; k1 is for measuring.

There are two ways to give k1 and k3 the gradient of KL(policy || ref). One is a factor of the
probability ratio to the policy that sampled (DeepSeek-V3.2, arXiv 2512.02556; TRL's default), which
also keeps the value right after the policy has moved. The other is `k1+` and `k3+`, which have the
value of k1 and k3 and the gradient of k2 (verl's names).

Reinforcement learning seeks modes and loses rare ones; the likelihood of expert answers covers
them. `mode_balanced_loss` adds the two with one weight (AFRL, arXiv 2602.10006).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from msgspec.structs import fields

from burnish.arguments import as_number, as_word
from burnish.errors import ArgumentError
from burnish.policy.base import Component, require
from burnish.policy.objective import MAX_LOG_RATIO, log_ratio
from burnish.tensors import (
    as_finite,
    as_logp,
    as_mask,
    check_finite,
    check_shape,
    check_tensor,
    torch,
)

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.aggregate import Aggregate
    from burnish.policy.batch import LossBatch
    from burnish.tensors import Numbers

KL_KINDS = ("k1", "k2", "k3", "k1+", "k3+")

READ_BY = {
    "linear": ("final_ratio",),
    "adaptive": ("target", "rate", "low", "high", "every", "held_out"),
}
"""Schedule of imitation -> the settings that only it reads."""


class KL(Component, frozen=True, tag="kl"):
    """Penalty for leaving the reference model."""

    coefficient: float = 0.04
    """Weight of the penalty in the loss; GRPO's paper has 0.04."""
    estimator: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """`k3+` has the value of k3 and the gradient of k2, which is that of the divergence (verl)."""
    correction: bool = False
    """Multiply by the probability ratio to the policy that sampled (TRL's default)."""

    def check(self) -> None:
        require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")
        if self.correction and self.estimator.endswith("+"):
            raise ArgumentError(
                f"correction: expected false with estimator '{self.estimator}', whose gradient is "
                "that of the divergence already; the ratio would add it once more"
            )

    @property
    def name(self) -> str:
        return "kl"

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: str) -> Tensor:
        """The penalty as it enters the loss, ()."""
        if self.coefficient == 0:
            return batch.logp_BT.new_zeros(())
        if batch.ref_logp_BT is None:
            raise ArgumentError("ref_logp_BT: got none, expected (B, T); the recipe has a KL term")
        # Padding may hold anything: cut here, it cannot reach the gradient.
        is_out_BT = ~(batch.mask_BT.bool() & batch.keep_B.bool()[:, None])
        logp_BT = batch.logp_BT.masked_fill(is_out_BT, 0.0)
        ratio_BT = None
        if self.correction:
            old_logp_BT = batch.old_logp_BT.detach()
            ratio_BT = log_ratio(batch.logp_BT, old_logp_BT, ~is_out_BT, ratio).exp()
        kl_BT = kl_estimate(logp_BT, batch.ref_logp_BT.detach(), self.estimator, ratio_BT)
        return self.coefficient * aggregate.total(kl_BT, batch)


class Entropy(Component, frozen=True, tag="entropy"):
    """Bonus for keeping the policy's entropy; below 0 it is a penalty."""

    coefficient: float
    """Weight of the entropy in the loss."""

    def check(self) -> None:
        require(math.isfinite(self.coefficient), "coefficient", self.coefficient, "finite")

    @property
    def name(self) -> str:
        return "entropy"

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: str) -> Tensor:
        """Minus the bonus, ()."""
        if self.coefficient == 0:
            return batch.logp_BT.new_zeros(())
        if batch.entropy_BT is None:
            raise ArgumentError(
                "entropy_BT: got none, expected (B, T); the recipe has an entropy term"
            )
        return -self.coefficient * aggregate.total(batch.entropy_BT, batch)


class SFT(Component, frozen=True, tag="sft"):
    """Imitation of experts beside the policy loss, so that rare rules are not forgotten (AFRL)."""

    coefficient: float
    """Weight of the imitation in the loss."""
    batch: int = 16
    """Demonstrations of each update; `[experts]` says where they come from."""
    by: str = ""
    """Task field whose values appear equally often, so that rare ones are not forgotten."""
    schedule: Literal["constant", "linear", "adaptive"] = "constant"
    """`linear` falls to `final_ratio` of the coefficient over the run. `adaptive` moves it so that
    demonstrations which are never imitated stay as likely as `target` says."""
    final_ratio: float = 0.0
    """Coefficient at the last step, as a share of the first (`linear`)."""
    target: float = 0.0
    """Negative log-prob a token (nats) that `adaptive` holds; 0 takes what the start model has."""
    rate: float = 0.5
    """How far one measurement moves the coefficient: its logarithm, for an NLL of twice the target."""
    low: float | None = None
    """Bounds of an adaptive coefficient; a quarter of `coefficient` to ten times it unless given."""
    high: float | None = None
    """Upper bound of an adaptive coefficient."""
    every: int = 5
    """Steps from one measurement to the next."""
    held_out: int = 16
    """Demonstrations that are measured."""
    gradients_every: int = 0
    """Steps from one comparison of the two losses' gradients to the next; 0 never compares them."""

    def check(self) -> None:
        require(0 <= self.coefficient < math.inf, "coefficient", self.coefficient, "at least 0")
        require(self.batch >= 1, "batch", self.batch, "at least 1")
        require(0 <= self.final_ratio <= 1, "final_ratio", self.final_ratio, "0 to 1")
        require(0 <= self.target < math.inf, "target", self.target, "at least 0, finite")
        require(0 <= self.rate < math.inf, "rate", self.rate, "at least 0, finite")
        for key in ("every", "held_out"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        require(self.gradients_every >= 0, "gradients_every", self.gradients_every, "at least 0")
        if self.schedule == "adaptive":
            self._check_adaptive()
        plain = {field.name: field.default for field in fields(self)}
        for other, keys in READ_BY.items():
            unread = [key for key in keys if getattr(self, key) != plain[key]]
            if unread and other != self.schedule:
                raise ArgumentError(
                    f"schedule: '{self.schedule}' does not read {', '.join(unread)}; set it to "
                    f"'{other}' or leave that out"
                )

    def _check_adaptive(self) -> None:
        moves = "above 0 with schedule 'adaptive', which multiplies it"
        require(self.coefficient > 0, "coefficient", self.coefficient, moves)
        low, high = self.bounds
        start = f"`coefficient` ({self.coefficient})"
        require(0 <= low <= self.coefficient, "low", low, f"0 to {start}")
        require(self.coefficient <= high < math.inf, "high", high, f"at least {start}, finite")

    @property
    def bounds(self) -> tuple[float, float]:
        """Where an adaptive coefficient stays."""
        low = self.coefficient / 4 if self.low is None else self.low
        high = self.coefficient * 10 if self.high is None else self.high
        return low, high

    @property
    def name(self) -> str:
        return "sft"

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: str) -> Tensor:
        """Negative log-prob of the demonstrations in the batch, (); 0 without any."""
        if batch.expert_logp_BT is None or batch.expert_mask_BT is None:
            return batch.logp_BT.new_zeros(())
        return self.coefficient * masked_nll(batch.expert_logp_BT, batch.expert_mask_BT)


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
        tokens = as_number("tokens", tokens, low=0)
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
    lam = as_number("lam", lam, low=0)
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
