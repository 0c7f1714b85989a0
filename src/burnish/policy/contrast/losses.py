"""Contrastive losses inside groups of rollouts: right ones attract each other, wrong ones repel.

With s = similarity / temperature, P(i) the n other rollouts with i's label, A(i) everything i is
compared with, N(i) = A(i) without P(i), and LSE the log-sum-exp (CLIPO, arXiv 2603.10101):

| loss         | l_i                                         | as computed                     |
|--------------|---------------------------------------------|---------------------------------|
| `infonce`    | LSE_A s - s_ip, p drawn from P(i)           | soft_nn + LSE_P s - s_ip        |
| `supcon_out` | LSE_A s - mean_P s, the mean of `infonce`   | soft_nn + LSE_P s - mean_P s    |
| `soft_nn`    | LSE_A s - LSE_P s                           | log(1 + exp(LSE_N s - LSE_P s)) |
| `supcon_in`  | LSE_A s - LSE_P s + log n                   | soft_nn + log n                 |

The right column never cancels: small losses keep their digits and none is below 0. Where we differ
from the published code: log-sum-exps are exact and leave the rollout itself out (a constant inside
its logarithm gives 2.06 for four orthogonal vectors at temperature 0.05; it is ln 3 = 1.10), and
work is done group by group, never in tables of the whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.arguments import as_whole
from burnish.policy.contrast.compare import (
    AnchorRule,
    Compared,
    ContrastRule,
    LossName,
    Rollouts,
    Scope,
    Similarity,
    compare,
)
from burnish.policy.contrast.inputs import as_embeddings, as_keys, unit_rows
from burnish.policy.contrast.pairs import BLOCK_PAIRS, blocks
from burnish.policy.groups import as_groups
from burnish.policy.tensors import as_marks

if TYPE_CHECKING:
    from burnish.policy.groups import GroupLabels
    from burnish.policy.tensors import Numbers


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


def contrastive_losses(
    embeddings: Numbers,
    labels: Numbers,
    groups: GroupLabels,
    loss: LossName = "infonce",
    temperature: float = 0.05,
    scope: Scope = "group",
    anchors: AnchorRule = "correct_only",
    skip_trivial: bool = True,
    *,
    similarity: Similarity = "cosine",
    seed: int = 0,
    keys: Tensor | None = None,
    twins: GroupLabels | None = None,
    dedup: bool = False,
    dedup_cos: float = 0.999,
    usable: Numbers | None = None,
) -> ContrastiveLosses:
    """The loss of each anchor, differentiable in `embeddings`: (B, d), (B,), (B,) -> (B,), ().

    Embeddings are brought to length 1 here. `labels` are 1 for right and 0 for wrong rollouts.
    `scope`: `group` takes P and A from the group, `batch` both from the batch, `cross` P from the
    group and A from the batch. An anchor needs a rollout in P and, with `skip_trivial`, one in N;
    `correct_only` makes right rollouts anchors and `all` also wrong ones. `similarity` is the cosine,
    minus the cosine, or `distance`: 1 minus the distance of the unit vectors, 1 - sqrt(2 - 2 cos).

    Only `infonce` draws: from `seed` and the pair's `keys`, int64 (B,), a rollout's own numbers;
    positions when absent. `dedup` drops pairs with equal `twins`, any hashables (token ids, say), or
    a cosine above `dedup_cos` from P and A. Rollouts without a direction (NaN, infinite or 0), and
    those whose `usable` (B,) is 0, are compared with nobody and have loss 0.
    """
    rule = ContrastRule(
        loss, temperature, scope, anchors, skip_trivial, similarity, dedup, dedup_cos
    )
    return contrast(
        embeddings, labels, groups, rule, seed=seed, keys=keys, twins=twins, usable=usable
    ).losses


def contrast(
    embeddings: Numbers,
    labels: Numbers,
    groups: GroupLabels,
    rule: ContrastRule,
    *,
    seed: int = 0,
    keys: Tensor | None = None,
    twins: GroupLabels | None = None,
    usable: Numbers | None = None,
    block_pairs: int = BLOCK_PAIRS,
) -> Contrast:
    """`contrastive_losses` under a rule, with the mean cosines of each anchor beside it.

    No table has more than `block_pairs` entries unless one anchor's own is larger; the size of the
    blocks changes memory and not results.
    """
    seed = as_whole("seed", seed)
    units_BE, has_direction_B = unit_rows(as_embeddings(embeddings))
    numbered = as_groups(groups, units_BE)
    is_usable_B = has_direction_B
    if usable is not None:
        is_usable_B = has_direction_B & as_marks(usable, "usable", units_BE)
    rollouts = Rollouts(
        units_BE=units_BE,
        is_right_B=as_marks(labels, "labels", units_BE),
        is_usable_B=is_usable_B,
        group_B=numbered.index_B,
        key_B=as_keys(keys, units_BE),
        twin_B=as_groups(twins, units_BE, "twins").index_B
        if rule.dedup and twins is not None
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
