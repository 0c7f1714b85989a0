"""Advantage `stepwise`: each section of a response is credited with its own reward (AFRL).

Every reward is standardised in its group on its own, as GDPO does, and credited to the tokens of its
own segment (`local`), or to these and all tokens before them (`to_go`). From AFRL (arXiv 2602.10006),
whose equations we could not read: `local` is our default, because a grade that stands first would
otherwise be credited with the prose that follows it.

With `split` an answer has as many steps as it is written in, and the first reward scores each of
them: process supervision of DeepSeekMath (arXiv 2402.03300, 4.1.3). Further rewards are those of the
whole answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from burnish.boundary import NonNegative, public
from burnish.errors import ArgumentError
from burnish.policy.base import Component
from burnish.policy.batch import Estimate, needed
from burnish.policy.groups import (
    Ddof,
    Groups,
    as_groups,
    as_weights,
    columns,
    is_constant,
    per_reward_advantages,
    standardise,
)
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

    from burnish.policy.batch import RewardBatch
    from burnish.policy.groups import GroupLabels, Rewards, RewardWeights

    Segments = Int[Tensor, "B T"]
    TokenMask = Bool[Tensor, "B T"]

Credit = Literal["local", "to_go"]


class Stepwise(Component, frozen=True, tag="stepwise"):
    """Each section of an answer is credited with its own reward (AFRL): advantages by token."""

    rewards: tuple[str, ...]
    """Rewards by section: the first is that of the answer's first token, then one a heading. A
    single one, without headings, is that of the whole answer."""
    headings: tuple[str, ...] = ()
    """How sections 1, 2, ... begin, each on a line of its own: `rule:`, `why:`."""
    split: Literal["sections", "blank_lines", "lines", "headings"] = "sections"
    """Other than `sections`: as many steps as an answer has, cut at blank lines, lines or `headings`.
    The first of `rewards` scores each step as a part, such as `process_reward_model` with the same
    `split`; further ones score the whole answer."""
    credit: Credit = "local"
    """`to_go` also credits a section with the rewards of those after it."""
    eps: NonNegative = 1e-6
    """Added to the deviation."""
    ddof: Ddof = 1
    """1 divides the squares by n - 1, 0 by n."""

    def check(self) -> None:
        if self.by_steps:
            if not self.rewards:
                raise ArgumentError("rewards: got none, expected the one that scores steps first")
            is_met = bool(self.headings) == (self.split == "headings")
            expected = "some with split = 'headings', and none without"
        else:
            is_met = len(self.headings) + 1 == len(self.rewards)
            expected = f"{len(self.rewards) - 1}, one for each reward after the first"
        if not is_met:
            raise ArgumentError(f"headings: got {len(self.headings)}, expected {expected}")

    @property
    def by_steps(self) -> bool:
        """Whether an answer has as many steps as it is written in, each with a score."""
        return self.split != "sections"

    def estimate(self, batch: RewardBatch) -> Estimate:
        why = "the recipe's advantage is stepwise"
        segments_BT = needed(batch.segments_BT, "segments_BT", why)
        columns = [batch.column(name, "policy.advantage: stepwise") for name in self.rewards]
        rewards_BK, weights_K = batch.rewards_BK[:, columns], batch.weights_K[columns]
        where = batch.groups_B, segments_BT, batch.has_token_BT
        how = self.credit, self.eps, self.ddof
        is_present_B = (~rewards_BK.isnan() & (weights_K != 0)).any(1)
        if not self.by_steps:
            values_BT = stepwise_advantages.plain(rewards_BK, *where, weights_K, *how)
        else:
            steps_BJ = needed(batch.steps_BJ, "steps_BJ", f"{why} with split")
            values_BT = weights_K[0] * process_advantages.plain(steps_BJ, *where, *how)
            whole_BK = per_reward_advantages.plain(rewards_BK[:, 1:], batch.groups_B, *how[1:])
            whole_B1 = (whole_BK * weights_K[1:]).sum(1, keepdim=True)
            credited_BT = credited_tokens.plain(segments_BT, batch.has_token_BT)
            values_BT = torch.where(credited_BT, values_BT + whole_B1, 0.0)
            is_present_B = is_present_B & credited_BT.any(1)
        return Estimate(
            values_BT,
            per_reward_advantages.plain(batch.rewards_BK, batch.groups_B, self.eps, self.ddof),
            is_present_B,
        )


@public
def stepwise_advantages(
    rewards: Rewards,
    groups: GroupLabels,
    segments: Segments,
    mask: TokenMask,
    weights: RewardWeights | None = None,
    credit: Credit = "local",
    eps: NonNegative = 1e-6,
    ddof: Ddof = 1,
) -> Tensor:
    """The advantage of each token from the reward of its segment: (B, K), (B, T) -> (B, T).

    `segments` holds the column of `rewards` that a token answers for, or -1 for none. With
    `a_ik` the standardised reward, a token of segment k gets `w_k a_ik` (`local`) or the sum of
    `w_j a_ij` over j >= k (`to_go`); `weights` (K,) are all 1 when absent. 0 where the mask is 0,
    the segment is -1, the reward is missing or its group has no differences.
    """
    rewards_BK, numbered = columns(rewards), as_groups(groups)
    paid_BK = standardise(rewards_BK, numbered, eps=eps, ddof=ddof)
    paid_BK = paid_BK * as_weights(weights, rewards_BK)
    if credit == "to_go":
        paid_BK = paid_BK.flip(1).cumsum(1).flip(1)
        # Rewards that cancel for a whole group leave rounding noise, not a signal.
        paid_BK = paid_BK.masked_fill(is_constant(paid_BK, numbered), 0.0)
    return _to_tokens(paid_BK, segments, mask, "rewards")


@public
def process_advantages(
    steps: Rewards,
    groups: GroupLabels,
    segments: Segments,
    mask: TokenMask,
    credit: Credit = "local",
    eps: NonNegative = 1e-6,
    ddof: Ddof = 1,
) -> Tensor:
    """The advantage of each token from the score of its step: (B, J), (B, T) -> (B, T).

    `steps` holds the score of each step of an answer, NaN where it has no such step; `segments` the
    step of each token, or -1 for none. With `a_ij` the score standardised over all steps of all
    answers of the group, a token of step k gets `a_ik` (`local`) or the sum of `a_ij` over j >= k
    (`to_go`). 0 where the mask is 0, the step has no score or all of its group are equal.
    """
    steps = columns(steps)
    numbered, size = as_groups(groups), steps.shape[1]
    flat = Groups(numbered.index_B.repeat_interleave(size), numbered.total)
    paid_BJ = standardise(steps.reshape(-1, 1), flat, eps=eps, ddof=ddof).reshape(-1, size)
    if credit == "to_go":
        paid_BJ = paid_BJ.flip(1).cumsum(1).flip(1)
    return _to_tokens(paid_BJ, segments, mask, "steps")


@public
def credited_tokens(segments: Segments, mask: TokenMask) -> Tensor:
    """True for the tokens that stepwise credit trains: unmasked and inside a segment, (B, T) bool.

    The loss is to be averaged over these alone.
    """
    return mask & (segments >= 0)


def _to_tokens(paid_BK: Tensor, segments_BT: Tensor, mask_BT: Tensor, of: str) -> Tensor:
    """What each token's segment is paid, (B, T)."""
    count = paid_BK.shape[1]
    is_odd_BT = (segments_BT < -1) | (segments_BT >= count)
    if is_odd_BT.any():
        rollout, token = is_odd_BT.nonzero()[0].tolist()
        raise ArgumentError(
            f"segments: token {token} of rollout {rollout} is in segment "
            f"{int(segments_BT[rollout, token])}; expected -1 to {count - 1}, for there are {count} {of}"
        )
    credited_BT = credited_tokens.plain(segments_BT, mask_BT)
    return paid_BK.gather(1, segments_BT.clamp(min=0)).masked_fill(~credited_BT, 0.0)
