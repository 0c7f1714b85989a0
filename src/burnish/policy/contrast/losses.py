"""Contrastive losses inside groups of rollouts: right ones attract each other, wrong ones repel.

With s = similarity / temperature, P(i) the n other rollouts with i's label, A(i) everything i is
compared with, N(i) = A(i) without P(i), and LSE the log-sum-exp (CLIPO, arXiv 2603.10101):

| loss         | l_i                                         | as computed                     |
|--------------|---------------------------------------------|---------------------------------|
| `infonce`    | LSE_A s - s_ip, p drawn from P(i)           | soft_nn + LSE_P s - s_ip        |
| `supcon_out` | LSE_A s - mean_P s, the mean of `infonce`   | soft_nn + LSE_P s - mean_P s    |
| `soft_nn`    | LSE_A s - LSE_P s                           | log(1 + exp(LSE_N s - LSE_P s)) |
| `supcon_in`  | LSE_A s - LSE_P s + log n                   | soft_nn + log n                 |

The right column never cancels. Where we differ from the published code: log-sum-exps are exact and
leave the rollout itself out, and work is done group by group, never in tables of the whole batch: groups
of equal size stand together, and where every rollout is compared with the whole batch, anchors come a
few at a time. Tables are (Q, A, C): groups, anchors of a block, candidates an anchor is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from burnish.boundary import UNREAD, Positive, Settings, public
from burnish.policy.groups import as_groups
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from burnish.policy.groups import GroupLabels, Groups

    # A row without a direction (NaN, infinite or 0) is dropped.
    Embeddings = Annotated[Float[Tensor, "B D"], UNREAD]
    Marks = Bool[Tensor, " B"]
    Keys = Int[Tensor, " B"]

LossName = Literal["infonce", "supcon_out", "soft_nn", "supcon_in"]
Scope = Literal["group", "cross", "batch"]
AnchorRule = Literal["correct_only", "all"]
Similarity = Literal["cosine", "negative_cosine", "distance"]
Cosine = Annotated[float, Meta(ge=-1.0, le=1.0)]

BLOCK_PAIRS = 1 << 20
"""Pairs of one block: 4 MiB for each float32 table."""


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


class ContrastRule(Settings, frozen=True):
    """How rollouts are compared; `contrastive_losses` says what each field means."""

    loss: LossName = "infonce"
    temperature: Positive = 0.05
    scope: Scope = "group"
    anchors: AnchorRule = "correct_only"
    skip_trivial: bool = True
    similarity: Similarity = "cosine"
    dedup: bool = False
    dedup_cos: Cosine = 0.999


class ContrastiveLosses(NamedTuple):
    """What each rollout's contrast costs."""

    per_sample: Tensor
    """(B,); 0 for rollouts that are no anchors."""
    mean: Tensor
    """0-d: the sum over anchors / their number; 0 where there are none."""
    anchors: Tensor
    """bool (B,)."""


class Contrast(NamedTuple):
    """The losses, and what a person wants to see beside them."""

    losses: ContrastiveLosses
    positive_cos_B: Tensor
    """Mean cosine of each anchor with P, detached; 0 for other rollouts."""
    negative_cos_B: Tensor
    """The same with N; NaN where an anchor has none."""
    has_direction_B: Tensor
    """bool; False where the embedding is NaN, infinite or 0."""


class Rollouts(NamedTuple):
    """What a comparison reads of every rollout of the batch."""

    units_BE: Tensor
    is_right_B: Tensor
    is_usable_B: Tensor
    group_B: Tensor
    key_B: Tensor
    duplicate_B: Tensor | None


class Compared(NamedTuple):
    """What came of each anchor, (Q, A) for a block and (B,) for the batch; 0 where it was none."""

    loss: Tensor
    is_anchor: Tensor
    positive_cos: Tensor
    """Mean cosine with P, detached."""
    negative_cos: Tensor
    """The same with N; NaN for an anchor without any."""


class Block(NamedTuple):
    """Positions in the batch: each anchor of row q is compared with each candidate of row q."""

    anchors_QA: Tensor
    candidates_QC: Tensor


@public
def contrastive_losses(
    embeddings: Embeddings,
    labels: Marks,
    groups: GroupLabels,
    loss: LossName = "infonce",
    temperature: Positive = 0.05,
    scope: Scope = "group",
    anchors: AnchorRule = "correct_only",
    skip_trivial: bool = True,
    *,
    similarity: Similarity = "cosine",
    seed: int = 0,
    keys: Keys | None = None,
    duplicate_ids: GroupLabels | None = None,
    dedup: bool = False,
    dedup_cos: Cosine = 0.999,
    usable: Marks | None = None,
) -> ContrastiveLosses:
    """The loss of each anchor, differentiable in `embeddings`: (B, d), (B,), (B,) -> (B,), ().

    Embeddings are brought to length 1 here. `labels` are 1 for right and 0 for wrong rollouts.
    `scope`: `group` takes P and A from the group, `batch` both from the batch, `cross` P from the
    group and A from the batch. An anchor needs a rollout in P and, with `skip_trivial`, one in N;
    `correct_only` makes right rollouts anchors and `all` also wrong ones. `similarity` is the cosine,
    minus the cosine, or `distance`: 1 minus the distance of the unit vectors, 1 - sqrt(2 - 2 cos).

    Only `infonce` draws: from `seed` and the pair's `keys`, int64 (B,), a rollout's own numbers;
    positions when absent. `dedup` drops pairs with equal `duplicate_ids`, any hashables (token ids, say), or
    a cosine above `dedup_cos` from P and A. Rollouts without a direction (NaN, infinite or 0), and
    those whose `usable` (B,) is 0, are compared with nobody and have loss 0.
    """
    rule = ContrastRule(
        loss, temperature, scope, anchors, skip_trivial, similarity, dedup, dedup_cos
    )
    more: dict[str, Any] = {"keys": keys, "duplicate_ids": duplicate_ids, "usable": usable}
    return contrast(embeddings, labels, groups, rule, seed=seed, **more).losses


def contrast(
    embeddings: Tensor,
    labels: Tensor,
    groups: Tensor,
    rule: ContrastRule,
    *,
    seed: int = 0,
    keys: Tensor | None = None,
    duplicate_ids: Tensor | None = None,
    usable: Tensor | None = None,
    block_pairs: int = BLOCK_PAIRS,
) -> Contrast:
    """`contrastive_losses` under a rule, with the mean cosines of each anchor beside it.

    No table has more than `block_pairs` entries unless one anchor's own is larger; the size of the
    blocks changes memory and not results.
    """
    from torch.utils.checkpoint import checkpoint

    units_BE, has_direction_B = unit_rows(embeddings)
    numbered = as_groups(groups)
    is_usable_B = has_direction_B if usable is None else has_direction_B & usable
    positions_B = torch.arange(len(units_BE), device=units_BE.device)
    rollouts = Rollouts(
        units_BE=units_BE,
        is_right_B=labels.bool(),
        is_usable_B=is_usable_B,
        group_B=numbered.index_B,
        key_B=positions_B if keys is None else keys,
        duplicate_B=as_groups(duplicate_ids).index_B
        if rule.dedup and duplicate_ids is not None
        else None,
    )
    wanted_B = is_usable_B & (rollouts.is_right_B | (rule.anchors == "all"))
    work = list(blocks(numbered, wanted_B, block_pairs, whole_batch=rule.scope != "group"))
    # Tables beyond one full block do not wait for the backward pass: it computes them again.
    pairs = sum(block.anchors_QA.numel() * block.candidates_QC.shape[1] for block in work)
    is_frugal = pairs > block_pairs and units_BE.requires_grad and torch.is_grad_enabled()
    # Zeros with a graph: a batch in which nobody has a group can be given to backward() like others.
    no_loss_B = units_BE[:, 0].masked_fill(torch.ones_like(wanted_B), 0.0)
    no_cos_B = no_loss_B.detach()
    found = Compared(no_loss_B, torch.zeros_like(wanted_B), no_cos_B, no_cos_B)
    for block in work:
        arguments = rollouts, block, rule, seed
        result = (
            checkpoint(compare, *arguments, use_reentrant=False, preserve_rng_state=False)
            if is_frugal
            else compare(*arguments)
        )
        place = block.anchors_QA.flatten()
        joined = zip(found, result, strict=True)
        found = Compared(*(old.scatter(0, place, new.flatten()) for old, new in joined))
    mean = found.loss.sum() / found.is_anchor.sum().clamp(min=1)
    return Contrast(
        losses=ContrastiveLosses(found.loss, mean, found.is_anchor),
        positive_cos_B=found.positive_cos,
        negative_cos_B=found.negative_cos,
        has_direction_B=has_direction_B,
    )


def compare(rollouts: Rollouts, block: Block, rule: ContrastRule, seed: int) -> Compared:
    """The losses and mean cosines of a block, each (Q, A)."""
    candidates_QCE = rollouts.units_BE[block.candidates_QC]
    is_square = block.anchors_QA is block.candidates_QC
    anchors_QAE = candidates_QCE if is_square else rollouts.units_BE[block.anchors_QA]
    cos_QAC = anchors_QAE @ candidates_QCE.transpose(1, 2)
    seen_QAC = cos_QAC.detach()
    mask_QAC, is_negative_QAC, is_anchor_QA = _pairs(rollouts, block, seen_QAC, rule)
    similar_QAC = -cos_QAC if rule.similarity == "negative_cosine" else cos_QAC
    if rule.similarity == "distance":
        # The slope of a square root at 0 is infinite: equal vectors have distance 0 and no gradient.
        gap_QAC = 2 - 2 * cos_QAC
        is_apart_QAC = gap_QAC > torch.finfo(gap_QAC.dtype).eps
        similar_QAC = 1 - torch.where(is_apart_QAC, gap_QAC, 1.0).sqrt() * is_apart_QAC
    scores_QAC = similar_QAC / rule.temperature
    log_positive_QA = _log_sum_exp(scores_QAC, mask_QAC, 0.0)
    log_negative_QA = _log_sum_exp(scores_QAC, is_negative_QAC, -torch.inf)
    gap_QA = log_negative_QA - log_positive_QA
    loss_QA = torch.logaddexp(gap_QA, torch.zeros_like(gap_QA))
    if rule.loss == "supcon_in":
        loss_QA = loss_QA + mask_QAC.sum(-1).clamp(min=1).to(gap_QA).log()
    elif rule.loss == "supcon_out":
        loss_QA = loss_QA + (log_positive_QA - _masked_mean(scores_QAC, mask_QAC))
    elif rule.loss == "infonce":
        keys_QA, keys_QC = rollouts.key_B[block.anchors_QA], rollouts.key_B[block.candidates_QC]
        chosen_QA1 = pick(mask_QAC, keys_QA, keys_QC, seed)[:, :, None]
        loss_QA = loss_QA + (log_positive_QA - scores_QAC.gather(-1, chosen_QA1)[:, :, 0])
    negative_cos_QA = _masked_mean(seen_QAC, is_negative_QAC)
    negative_cos_QA = negative_cos_QA.masked_fill(~is_negative_QAC.any(-1), torch.nan)
    return Compared(
        torch.where(is_anchor_QA, loss_QA, 0.0),
        is_anchor_QA,
        torch.where(is_anchor_QA, _masked_mean(seen_QAC, mask_QAC), 0.0),
        torch.where(is_anchor_QA, negative_cos_QA, 0.0),
    )


def _pairs(
    rollouts: Rollouts, block: Block, cos_QAC: Tensor, rule: ContrastRule
) -> tuple[Tensor, Tensor, Tensor]:
    """P and N of each anchor, (Q, A, C), and which are anchors, (Q, A)."""
    rows, columns = block.anchors_QA[:, :, None], block.candidates_QC[:, None, :]
    is_in_QAC = (rows != columns) & rollouts.is_usable_B[rows] & rollouts.is_usable_B[columns]
    if rule.dedup:
        is_in_QAC = is_in_QAC & (cos_QAC <= rule.dedup_cos)
        if rollouts.duplicate_B is not None:
            is_in_QAC = is_in_QAC & (rollouts.duplicate_B[rows] != rollouts.duplicate_B[columns])
    is_alike_QAC = rollouts.is_right_B[rows] == rollouts.is_right_B[columns]
    if rule.scope == "cross":
        is_alike_QAC = is_alike_QAC & (rollouts.group_B[rows] == rollouts.group_B[columns])
    is_positive_QAC, is_negative_QAC = is_in_QAC & is_alike_QAC, is_in_QAC & ~is_alike_QAC
    is_anchor_QA = is_positive_QAC.any(-1)
    if rule.skip_trivial:
        is_anchor_QA = is_anchor_QA & is_negative_QAC.any(-1)
    if rule.anchors == "correct_only":
        is_anchor_QA = is_anchor_QA & rollouts.is_right_B[block.anchors_QA]
    return is_positive_QAC, is_negative_QAC, is_anchor_QA


def _log_sum_exp(scores_QAC: Tensor, mask_QAC: Tensor, empty: float) -> Tensor:
    """Over the mask alone, (Q, A); `empty`, and no gradient, where the mask holds nothing."""
    is_empty_QA1 = ~mask_QAC.any(-1, keepdim=True)
    total_QA = scores_QAC.masked_fill(~(mask_QAC | is_empty_QA1), -torch.inf).logsumexp(-1)
    return total_QA.masked_fill(is_empty_QA1[:, :, 0], empty)


def _masked_mean(values_QAC: Tensor, mask_QAC: Tensor) -> Tensor:
    """Over the mask alone, (Q, A); 0 where it holds nothing."""
    return values_QAC.masked_fill(~mask_QAC, 0.0).sum(-1) / mask_QAC.sum(-1).clamp(min=1)


def blocks(
    groups: Groups, wanted_B: Tensor, most_pairs: int = BLOCK_PAIRS, *, whole_batch: bool
) -> Iterator[Block]:
    """Blocks in which every wanted rollout is an anchor exactly once.

    Rollouts that are not wanted, bool (B,), may be anchors of a block too. A group of one has
    nothing to be compared with and is in none.
    """
    everyone_1C = torch.arange(len(wanted_B), device=wanted_B.device)[None]
    families = [everyone_1C] if whole_batch else _by_size(groups)
    for members_QC in families:
        size = members_QC.shape[1]
        if size < 2:
            continue
        if size**2 <= most_pairs:
            for part_QC in torch.split(members_QC, most_pairs // size**2):
                yield Block(part_QC, part_QC)
            continue
        for members_C in members_QC:
            anchors_A = members_C[wanted_B[members_C]]
            for part_A in torch.split(anchors_A, max(most_pairs // size, 1)):
                yield Block(part_A[None], members_C[None])


def pick(mask_QAC: Tensor, anchor_keys_QA: Tensor, candidate_keys_QC: Tensor, seed: int) -> Tensor:
    """One candidate for each anchor, uniform over those of its mask: -> (Q, A) positions in C.

    The pick is the candidate with the highest hash of (seed, anchor's key, candidate's key): it
    depends on nothing but those, so neither order nor other groups change it.
    """
    # The 64-bit signed integer that the seed is congruent to.
    wrapped = (seed + (1 << 63)) % (1 << 64) - (1 << 63)
    anchors_QA1 = mixed(anchor_keys_QA * _GOLDEN + wrapped)[:, :, None]
    hash_QAC = mixed(anchors_QA1 + candidate_keys_QC[:, None, :] * _GOLDEN)
    return hash_QAC.masked_fill(~mask_QAC, torch.iinfo(torch.int64).min).argmax(-1)


def _by_size(groups: Groups) -> Iterator[Tensor]:
    """The members of all groups of one size, (Q, G), for each size."""
    sizes_Q = torch.zeros(groups.total, dtype=torch.int64, device=groups.index_B.device)
    sizes_Q.index_add_(0, groups.index_B, torch.ones_like(groups.index_B))
    starts_Q = sizes_Q.cumsum(0) - sizes_Q
    order_B = groups.index_B.argsort(stable=True)
    for size in torch.unique(sizes_Q).tolist():
        first_Q1 = starts_Q[sizes_Q == size][:, None]
        yield order_B[first_Q1 + torch.arange(size, device=order_B.device)]


def mixed(values: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014) in wrapping 64-bit integers."""
    for shift, factor in _MIX:
        values = (values ^ _shifted(values, shift)) * factor
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: the sign of a 64-bit integer does not smear."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def unit_rows(values_BE: Tensor) -> tuple[Tensor, Tensor]:
    """Rows at length 1, and which rows have a direction, bool (B,); the others become 0.

    A row without a direction (NaN, infinite or 0) passes no gradient, so it cannot poison the rest.
    """
    norm_B = torch.linalg.vector_norm(values_BE.detach(), dim=1)
    has_direction_B = norm_B.isfinite() & (norm_B > 0)
    safe_BE = values_BE.masked_fill(~has_direction_B[:, None], 1.0)
    units_BE = safe_BE / torch.linalg.vector_norm(safe_BE, dim=1, keepdim=True)
    return units_BE.masked_fill(~has_direction_B[:, None], 0.0), has_direction_B
