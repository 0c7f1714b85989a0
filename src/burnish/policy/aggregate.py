"""Aggregate: from token losses to one number, exact under micro-batching.

| mode                      | value                                             | used by      |
|---------------------------|---------------------------------------------------|--------------|
| `token-mean`              | sum of all tokens / tokens                        | DAPO, GDPO   |
| `seq-mean-token-mean`     | mean over rollouts of the mean over their tokens  | GRPO, GSPO   |
| `seq-mean-token-sum`      | mean over rollouts of the sum of their tokens     |              |
| `seq-mean-token-sum-norm` | the same / a constant length                      | Dr.GRPO      |

Rollouts that are not kept, or have no trained token, leave numerator and denominator. With a
`Normaliser` of the whole mini-batch the values of its micro-batches add up to its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from burnish.boundary import UNREAD, Count, PositiveInt, Settings, public
from burnish.errors import UserError
from burnish.policy.batch import Normaliser
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from burnish.policy.batch import LossBatch

    TokenMask = Bool[Tensor, "B T"]
    Keep = Bool[Tensor, " B"]

Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
]


class Aggregate(Settings, frozen=True):
    """How token losses become one number."""

    WORD: ClassVar[str] = "mode"
    """The key that `aggregate = "token-mean"` sets."""

    mode: Aggregation = "seq-mean-token-mean"
    """What the sum of token losses is divided by; see the table of `burnish.policy.aggregate`."""
    max_tokens: Count = 0
    """The constant length of `seq-mean-token-sum-norm`; 0 takes the rollout's token budget."""
    keep_denominator: bool = False
    """Count masked rollouts in the denominator."""

    def length(self, batch: LossBatch) -> int | None:
        """The constant length that the mode divides by; None where it has none."""
        if self.mode != "seq-mean-token-sum-norm":
            return None
        length = self.max_tokens or batch.max_tokens
        if length < 1:
            # The width of a micro-batch will not do: it differs from one to the next.
            raise UserError(
                "policy.aggregate.max_tokens is 0; expected a length of at least 1, because mode "
                "'seq-mean-token-sum-norm' divides by it and the batch names no token budget."
            )
        return length

    def total(self, values_BT: Tensor, batch: LossBatch) -> Tensor:
        return aggregate_loss.plain(
            values_BT,
            batch.mask_BT,
            self.mode,
            keep_B=batch.keep_B,
            normaliser=batch.normaliser,
            max_tokens=self.length(batch),
            keep_denominator=self.keep_denominator,
        )


@public
def aggregate_loss(
    values_BT: Annotated[Float[Tensor, "B T"], UNREAD],
    mask_BT: TokenMask,
    mode: Aggregation = "token-mean",
    *,
    keep_B: Keep | None = None,
    normaliser: Normaliser | None = None,
    max_tokens: PositiveInt | None = None,
    keep_denominator: bool = False,
) -> Tensor:
    """One number from token values: (B, T), (B, T) -> (); 0 where nothing is left.

    `max_tokens` is the constant length of `seq-mean-token-sum-norm`, T when absent;
    `keep_denominator` counts rollouts that are masked or not kept all the same. A `normaliser`
    brings denominators of its own.
    """
    used_BT = _used(mask_BT, keep_B)
    values_BT = values_BT.masked_fill(~used_BT, 0.0)
    tokens: Tensor | float
    rollouts: Tensor | float
    if normaliser is None:
        counted = _denominators(mask_BT, keep_B, keep_denominator)
        tokens, rollouts = (count.clamp(min=1) for count in counted)
    else:
        tokens, rollouts = max(normaliser.tokens, 1.0), max(normaliser.rollouts, 1.0)
    if mode == "token-mean":
        return values_BT.sum() / tokens
    sum_B = values_BT.sum(1)
    if mode == "seq-mean-token-mean":
        sum_B = sum_B / used_BT.sum(1).clamp(min=1)
    elif mode == "seq-mean-token-sum-norm":
        sum_B = sum_B / (max_tokens or values_BT.shape[1])
    return sum_B.sum() / rollouts


@public
def normaliser_of(
    mask_BT: TokenMask, keep_B: Keep | None = None, *, keep_denominator: bool = False
) -> Normaliser:
    """The denominators of a mini-batch, to be given to each of its micro-batches."""
    tokens, rollouts = _denominators(mask_BT, keep_B, keep_denominator)
    return Normaliser(tokens=float(tokens), rollouts=float(rollouts))


def _used(mask_BT: Tensor, keep_B: Tensor | None) -> Tensor:
    used_BT = mask_BT.bool()
    return used_BT if keep_B is None else used_BT & keep_B.bool()[:, None]


def _denominators(
    mask_BT: Tensor, keep_B: Tensor | None, keep_denominator: bool
) -> tuple[Tensor, Tensor]:
    if keep_denominator:
        return mask_BT.bool().sum(), torch.tensor(len(mask_BT), device=mask_BT.device)
    used_BT = _used(mask_BT, keep_B)
    return used_BT.sum(), used_BT.any(1).sum()
