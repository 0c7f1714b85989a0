"""Auxiliary terms of the loss: KL to a reference model, entropy, and imitation of demonstrations.

With `d = ref_logp - logp` on tokens sampled from the policy, the estimators of KL(policy || ref)
are k1 = -d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance) and
k3 = exp(d) - d - 1 (unbiased, never negative). Unbiased is the value: as a term of the loss on
freshly sampled tokens the gradient of k1 has mean 0 and that of k3 is the forward KL's; k2's is that
of KL(policy || ref). Two ways give k1 and k3 that gradient: a factor of the probability ratio to the
policy that sampled (DeepSeek-V3.2, arXiv 2512.02556; TRL's default), and `k1+` and `k3+`, which have
the value of k1 and k3 and the gradient of k2 (verl's names).

`mode_balanced_loss` adds the likelihood of expert answers with one weight (AFRL, arXiv 2602.10006).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec.structs import fields

from burnish.arguments import ordered
from burnish.boundary import UNREAD, Count, NonNegative, Number, PositiveInt, Share, public
from burnish.errors import ArgumentError
from burnish.policy.base import Component
from burnish.policy.batch import needed
from burnish.policy.objective import MAX_LOG_RATIO, RatioLevel, log_ratio
from burnish.policy.state import EntropyState
from burnish.tensors import as_logp, check_finite, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from burnish.policy.aggregate import Aggregate
    from burnish.policy.batch import LossBatch

    Logp = Float[Tensor, "*S"]

Estimator = Literal["k1", "k2", "k3", "k1+", "k3+"]

READ_BY = {
    "linear": ("final_ratio",),
    "adaptive": ("target", "rate", "low", "high", "every", "held_out"),
}
"""Schedule of imitation -> the settings that only it reads."""


class KL(Component, frozen=True, tag="kl"):
    """Penalty for leaving the reference model."""

    name: ClassVar[str] = "kl"

    coefficient: NonNegative = 0.04
    """Weight of the penalty in the loss; GRPO's paper has 0.04."""
    estimator: Estimator = "k3"
    """`k3+` has the value of k3 and the gradient of k2, which is that of the divergence (verl)."""
    correction: bool = False
    """Multiply by the probability ratio to the policy that sampled (TRL's default)."""

    def check(self) -> None:
        if self.correction and self.estimator.endswith("+"):
            raise ArgumentError(
                f"correction: expected false with estimator '{self.estimator}', whose gradient is "
                "that of the divergence already; the ratio would add it once more"
            )

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: RatioLevel) -> Tensor:
        if self.coefficient == 0:
            return batch.logp_BT.new_zeros(())
        ref_logp_BT = needed(batch.ref_logp_BT, "ref_logp_BT", "the recipe has a KL term")
        # Padding may hold anything: cut here, it cannot reach the gradient.
        is_out_BT = ~(batch.mask_BT.bool() & batch.keep_B.bool()[:, None])
        logp_BT = batch.logp_BT.masked_fill(is_out_BT, 0.0)
        ratio_BT = None
        if self.correction:
            old_logp_BT = batch.old_logp_BT.detach()
            ratio_BT = log_ratio(batch.logp_BT, old_logp_BT, ~is_out_BT, ratio).exp()
        kl_BT = kl_estimate(logp_BT, ref_logp_BT.detach(), self.estimator, ratio_BT)
        return self.coefficient * aggregate.total(kl_BT, batch)


def _entropy(batch: LossBatch) -> Tensor:
    return needed(batch.entropy_BT, "entropy_BT", "the recipe has an entropy term")


class Entropy(Component, frozen=True, tag="entropy"):
    """Bonus for keeping the policy's entropy; below 0 it is a penalty."""

    name: ClassVar[str] = "entropy"

    coefficient: Number
    """Weight of the entropy in the loss."""

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: RatioLevel) -> Tensor:
        if self.coefficient == 0:
            return batch.logp_BT.new_zeros(())
        return -self.coefficient * aggregate.total(_entropy(batch), batch)


class AdaptiveEntropy(Component, frozen=True, tag="adaptive_entropy"):
    """Bonus for entropy that is there only while entropy is low (Skywork-OR1, arXiv 2505.22312).

    The coefficient rises by `step` after each training step whose mean entropy is at or below the
    target and falls by `step` otherwise; the bonus is added only where the last entropy was at or
    below the target. TRL moves its coefficient after each update, this one after each step, however
    many updates that has: their mean is the entropy that counts.
    """

    name: ClassVar[str] = "entropy"

    target: NonNegative
    """Mean entropy of a token in nats. The metric `policy/entropy` shows where a run begins."""
    coefficient: NonNegative = 0.0
    """At the start; no step has been measured then, so the first has no bonus."""
    step: NonNegative = 0.005
    """How far the coefficient moves after each step."""
    low: NonNegative = 0.0
    """Least coefficient."""
    high: NonNegative = 1.0
    """Greatest coefficient."""

    def check(self) -> None:
        ordered("low", self.low, "coefficient", self.coefficient)
        ordered("coefficient", self.coefficient, "high", self.high)

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: RatioLevel) -> Tensor:
        coefficient = batch.entropy_coefficient
        coefficient = self.coefficient if coefficient is None else coefficient
        return -coefficient * aggregate.total(_entropy(batch), batch)

    def current(self, state: EntropyState | None) -> float:
        """The coefficient of the step after `state`; 0 while the last entropy was above the target."""
        is_low = state is not None and state.entropy <= self.target
        return state.coefficient if state is not None and is_low else 0.0

    def after(self, state: EntropyState | None, entropy: float) -> EntropyState:
        before = self.coefficient if state is None else state.coefficient
        limits = self.target, self.step, self.low, self.high
        return EntropyState(adapted_entropy_coefficient.plain(before, entropy, *limits), entropy)


@public
def adapted_entropy_coefficient(
    coefficient: Number,
    entropy: Number,
    target: NonNegative,
    step: NonNegative = 0.005,
    low: NonNegative = 0.0,
    high: NonNegative = 1.0,
) -> float:
    """The coefficient after a step: up by `step` where `entropy <= target`, else down; in `low..high`."""
    ordered("low", low, "high", high)
    return min(max(coefficient + (step if entropy <= target else -step), low), high)


class SFT(Component, frozen=True, tag="sft"):
    """Imitation of experts beside the policy loss, so that rare rules are not forgotten (AFRL)."""

    name: ClassVar[str] = "sft"

    coefficient: NonNegative
    """Weight of the imitation in the loss."""
    batch: PositiveInt = 16
    """Demonstrations of each update; `[experts]` says where they come from."""
    by: str = ""
    """Task field whose values appear equally often, so that rare ones are not forgotten."""
    schedule: Literal["constant", "linear", "adaptive"] = "constant"
    """`linear` falls to `final_ratio` of the coefficient over the run. `adaptive` moves it so that
    demonstrations which are never imitated stay as likely as `target` says."""
    final_ratio: Share = 0.0
    """Coefficient at the last step, as a share of the first (`linear`)."""
    target: NonNegative = 0.0
    """Negative log-prob a token (nats) that `adaptive` holds; 0 takes what the start model has."""
    rate: NonNegative = 0.5
    """How far one measurement moves the coefficient: its logarithm, for an NLL of twice the target."""
    low: NonNegative | None = None
    """Bounds of an adaptive coefficient; a quarter of `coefficient` to ten times it unless given."""
    high: NonNegative | None = None
    """Upper bound of an adaptive coefficient."""
    every: PositiveInt = 5
    """Steps from one measurement to the next."""
    held_out: PositiveInt = 16
    """Demonstrations that are measured."""
    gradients_every: Count = 0
    """Steps from one comparison of the two losses' gradients to the next; 0 never compares them."""

    def check(self) -> None:
        low, high = self.bounds
        if self.schedule == "adaptive" and not self.coefficient:
            raise ArgumentError(
                "coefficient: got 0, expected above 0 with schedule 'adaptive', which multiplies it"
            )
        if self.schedule == "adaptive":
            ordered("low", low, "coefficient", self.coefficient)
            ordered("coefficient", self.coefficient, "high", high)
        plain = {field.name: field.default for field in fields(self)}
        for other, keys in READ_BY.items():
            unread = [key for key in keys if getattr(self, key) != plain[key]]
            if unread and other != self.schedule:
                raise ArgumentError(
                    f"schedule: '{self.schedule}' does not read {', '.join(unread)}; set it to "
                    f"'{other}' or leave that out"
                )

    @property
    def bounds(self) -> tuple[float, float]:
        low = self.coefficient / 4 if self.low is None else self.low
        high = self.coefficient * 10 if self.high is None else self.high
        return low, high

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: RatioLevel) -> Tensor:
        if batch.expert_logp_BT is None or batch.expert_mask_BT is None:
            return batch.logp_BT.new_zeros(())
        return self.coefficient * masked_nll(batch.expert_logp_BT, batch.expert_mask_BT)


@public
def kl_penalty(
    logp: Logp, ref_logp: Logp, kind: Estimator = "k3", *, ratio: Logp | None = None
) -> Tensor:
    """The KL estimate of each token, differentiable in `logp`; any shape, the same for both.

    `ratio` is the probability ratio to the policy that sampled, with its gradient: a factor of the
    estimate that corrects its bias. `k1+` and `k3+` take none.
    """
    return kl_estimate(logp, ref_logp, kind, ratio)


def kl_estimate(logp: Tensor, ref_logp: Tensor, kind: str, ratio: Tensor | None = None) -> Tensor:
    """`kl_penalty` inside a loss: no value is looked at, for that would wait for the device."""
    if ratio is not None and kind.endswith("+"):
        raise ArgumentError(
            f"ratio: expected none with kind '{kind}', whose gradient is that of the "
            "divergence already; the ratio would add it once more"
        )
    gap = as_logp(ref_logp) - as_logp(logp)
    bounded = gap.clamp(max=MAX_LOG_RATIO)
    forms = {
        "k1": lambda: -gap,
        "k2": lambda: gap.square() / 2,
        "k3": lambda: torch.expm1(bounded) - bounded,
    }
    estimate = forms[kind.removesuffix("+")]()
    if kind.endswith("+"):
        right = gap.square() / 2
        return estimate.detach() + (right - right.detach())
    return estimate if ratio is None else estimate * ratio


@public
def token_entropy(logits: Annotated[Float[Tensor, "*S V"], UNREAD]) -> Tensor:
    """The entropy in nats of each next-token distribution: (..., V) -> (...)."""
    logp = torch.log_softmax(logits, dim=-1)
    # A logit of -inf is a forbidden token: it adds 0 to the entropy, not 0 * inf.
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)


@public
def sft_nll(
    logp: Annotated[Float[Tensor, "*S"], UNREAD],
    mask: Bool[Tensor, "*S"],
    *,
    tokens: NonNegative | None = None,
) -> Tensor:
    """Mean negative log-prob of demonstration tokens, `-sum(mask logp) / sum(mask)`: (B, T) -> ().

    0 where every token is masked; what stands there never matters. `tokens` is the denominator of
    the whole batch where this is a part of it.
    """
    check_finite(logp, "logp", mask)
    return masked_nll(logp, mask, tokens=tokens)


def masked_nll(logp: Tensor, mask: Tensor, *, tokens: float | None = None) -> Tensor:
    """`sft_nll` inside a loss: no value is looked at, for that would wait for the device."""
    values = as_logp(logp)
    is_used = mask.to(values.device) != 0
    count = is_used.sum() if tokens is None else torch.as_tensor(tokens, device=values.device)
    return -values.masked_fill(~is_used, 0.0).sum() / count.clamp(min=1)


@public
def mode_balanced_loss(
    rl_loss: Float[Tensor, ""],
    sft_logp: Annotated[Float[Tensor, "*S"], UNREAD],
    sft_mask: Bool[Tensor, "*S"],
    lam: NonNegative = 0.1,
) -> Tensor:
    """`L_RL + lam * L_SFT`, with the NLL of expert tokens as `L_SFT`: (), (B, T), (B, T) -> ().

    With `lam` 0, or no expert token at all, `rl_loss` itself comes back, bit for bit.
    """
    check_finite(sft_logp, "sft_logp", sft_mask)
    if lam == 0 or not bool(sft_mask.any()):
        return rl_loss
    return rl_loss + lam * masked_nll(sft_logp, sft_mask).to(rl_loss.device)
