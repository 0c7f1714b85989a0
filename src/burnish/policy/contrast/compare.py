"""One block of anchors against its candidates: who is in P and N, and what each anchor's loss is.

Every table here is (Q, A, C): groups, anchors of a block, candidates an anchor is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from burnish.arguments import as_number, as_word
from burnish.policy.contrast.pairs import Block, pick

LossName = Literal["infonce", "supcon_out", "soft_nn", "supcon_in"]
Scope = Literal["group", "batch", "cross"]
AnchorRule = Literal["correct_only", "all"]
Similarity = Literal["cosine", "negative_cosine", "distance"]


@dataclass(frozen=True)
class ContrastRule:
    """How rollouts are compared; `contrastive_losses` says what each field means."""

    loss: LossName = "infonce"
    temperature: float = 0.05
    scope: Scope = "group"
    anchors: AnchorRule = "correct_only"
    skip_trivial: bool = True
    similarity: Similarity = "cosine"
    dedup: bool = False
    dedup_cos: float = 0.999

    def __post_init__(self) -> None:
        for what, got, known in (
            ("loss", self.loss, get_args(LossName)),
            ("scope", self.scope, get_args(Scope)),
            ("anchors", self.anchors, get_args(AnchorRule)),
            ("similarity", self.similarity, get_args(Similarity)),
        ):
            as_word(what, got, known)
        as_number("temperature", self.temperature, above=0)
        as_number("dedup_cos", self.dedup_cos, low=-1, high=1)


class Rollouts(NamedTuple):
    """What a comparison reads of every rollout of the batch."""

    units_BE: Tensor
    is_right_B: Tensor
    is_usable_B: Tensor
    group_B: Tensor
    key_B: Tensor
    twin_B: Tensor | None


class Compared(NamedTuple):
    """What came of each anchor, (Q, A) for a block and (B,) for the batch; 0 where it was none."""

    loss: Tensor
    is_anchor: Tensor
    positive_cos: Tensor
    """Mean cosine with P, detached."""
    negative_cos: Tensor
    """The same with N; NaN for an anchor without any."""


class _Pairs(NamedTuple):
    is_positive_QAC: Tensor
    is_negative_QAC: Tensor
    is_anchor_QA: Tensor


def compare(rollouts: Rollouts, block: Block, rule: ContrastRule, seed: int) -> Compared:
    """The losses and mean cosines of a block, each (Q, A)."""
    candidates_QCE = rollouts.units_BE[block.candidates_QC]
    is_square = block.anchors_QA is block.candidates_QC
    anchors_QAE = candidates_QCE if is_square else rollouts.units_BE[block.anchors_QA]
    cos_QAC = anchors_QAE @ candidates_QCE.transpose(1, 2)
    seen_QAC = cos_QAC.detach()
    pairs = _pairs(rollouts, block, seen_QAC, rule)
    scores_QAC = _scores(cos_QAC, rule)
    log_positive_QA = _log_sum_exp(scores_QAC, pairs.is_positive_QAC, 0.0)
    log_negative_QA = _log_sum_exp(scores_QAC, pairs.is_negative_QAC, -torch.inf)
    gap_QA = log_negative_QA - log_positive_QA
    loss_QA = torch.logaddexp(gap_QA, torch.zeros_like(gap_QA))
    mask_QAC = pairs.is_positive_QAC
    if rule.loss == "supcon_in":
        loss_QA = loss_QA + mask_QAC.sum(-1).clamp(min=1).to(gap_QA).log()
    elif rule.loss == "supcon_out":
        loss_QA = loss_QA + (log_positive_QA - _masked_mean(scores_QAC, mask_QAC))
    elif rule.loss == "infonce":
        keys_QA, keys_QC = rollouts.key_B[block.anchors_QA], rollouts.key_B[block.candidates_QC]
        chosen_QA1 = pick(mask_QAC, keys_QA, keys_QC, seed)[:, :, None]
        loss_QA = loss_QA + (log_positive_QA - scores_QAC.gather(-1, chosen_QA1)[:, :, 0])
    is_anchor_QA = pairs.is_anchor_QA
    negative_cos_QA = _masked_mean(seen_QAC, pairs.is_negative_QAC)
    negative_cos_QA = negative_cos_QA.masked_fill(~pairs.is_negative_QAC.any(-1), torch.nan)
    return Compared(
        torch.where(is_anchor_QA, loss_QA, 0.0),
        is_anchor_QA,
        torch.where(is_anchor_QA, _masked_mean(seen_QAC, mask_QAC), 0.0),
        torch.where(is_anchor_QA, negative_cos_QA, 0.0),
    )


def _pairs(rollouts: Rollouts, block: Block, cos_QAC: Tensor, rule: ContrastRule) -> _Pairs:
    rows, columns = block.anchors_QA[:, :, None], block.candidates_QC[:, None, :]
    is_in_QAC = (rows != columns) & rollouts.is_usable_B[rows] & rollouts.is_usable_B[columns]
    if rule.dedup:
        is_in_QAC = is_in_QAC & (cos_QAC <= rule.dedup_cos)
        if rollouts.twin_B is not None:
            is_in_QAC = is_in_QAC & (rollouts.twin_B[rows] != rollouts.twin_B[columns])
    is_alike_QAC = rollouts.is_right_B[rows] == rollouts.is_right_B[columns]
    if rule.scope == "cross":
        is_alike_QAC = is_alike_QAC & (rollouts.group_B[rows] == rollouts.group_B[columns])
    is_positive_QAC, is_negative_QAC = is_in_QAC & is_alike_QAC, is_in_QAC & ~is_alike_QAC
    is_anchor_QA = is_positive_QAC.any(-1)
    if rule.skip_trivial:
        is_anchor_QA = is_anchor_QA & is_negative_QAC.any(-1)
    if rule.anchors == "correct_only":
        is_anchor_QA = is_anchor_QA & rollouts.is_right_B[block.anchors_QA]
    return _Pairs(is_positive_QAC, is_negative_QAC, is_anchor_QA)


def _scores(cos_QAC: Tensor, rule: ContrastRule) -> Tensor:
    if rule.similarity == "cosine":
        return cos_QAC / rule.temperature
    if rule.similarity == "negative_cosine":
        return -cos_QAC / rule.temperature
    # The slope of a square root at 0 is infinite: equal vectors have distance 0 and no gradient.
    gap_QAC = 2 - 2 * cos_QAC
    is_apart_QAC = gap_QAC > torch.finfo(gap_QAC.dtype).eps
    distance_QAC = torch.where(is_apart_QAC, gap_QAC, 1.0).sqrt() * is_apart_QAC
    return (1 - distance_QAC) / rule.temperature


def _log_sum_exp(scores_QAC: Tensor, mask_QAC: Tensor, empty: float) -> Tensor:
    """Over the mask alone, (Q, A); `empty`, and no gradient, where the mask holds nothing."""
    is_empty_QA1 = ~mask_QAC.any(-1, keepdim=True)
    total_QA = scores_QAC.masked_fill(~(mask_QAC | is_empty_QA1), -torch.inf).logsumexp(-1)
    return total_QA.masked_fill(is_empty_QA1[:, :, 0], empty)


def _masked_mean(values_QAC: Tensor, mask_QAC: Tensor) -> Tensor:
    """Over the mask alone, (Q, A); 0 where it holds nothing."""
    return values_QAC.masked_fill(~mask_QAC, 0.0).sum(-1) / mask_QAC.sum(-1).clamp(min=1)
