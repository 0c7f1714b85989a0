"""Losses that keep a named attribute of a pair out of a reward model (DIR), and their baselines.

    found = total_loss(h_chosen, h_rejected, r_chosen, r_rejected, bias_label, lam=1.0, head=head)
    found.total.backward()                      # Bradley-Terry plus lam times the penalty

DIR (arXiv 2512.23461) adds to Bradley-Terry an upper bound of the mutual information between what the
model looks at, `h_chosen - h_rejected`, and an attribute of the pair such as "chosen is longer". The
bound is CLUB with a head `q(b | difference)`; its normaliser cancels, so that it is the sum over classes
of `Cov(logit_k, 1[b = k])`: it costs O(N C), and it removes what the head can see and no more.

Where we differ from the published code: ties are left out, logits that are not finite drop the penalty
instead of reaching the weights, and `gather_rows` sums gradients over processes. The published gather
keeps the local slice, so that its lambda shrinks with the number of processes: ours = theirs / processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor
from torch.nn import functional

from burnish.arguments import refused
from burnish.boundary import NonNegative, public
from burnish.rewards.models.bradley_terry import bradley_terry_loss
from burnish.rewards.models.dir_term import Clamp, Representation
from burnish.tensors import as_logp

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch.distributed import ProcessGroup

    Logits = Float[Tensor, "N C"]
    Classes = Annotated[Int[Tensor, " N"], Meta(ge=-1)]
    PastClasses = Annotated[Int[Tensor, " Q"], Meta(ge=-1)]
    States = Float[Tensor, "N d"]
    PairScores = Float[Tensor, " N"]

Head = Callable[[Tensor], Tensor] | Mapping[str, object]

LEFT_OUT = -1
"""The label of a pair that says nothing, such as a tie: it has no part in the penalty."""


class DirLoss(NamedTuple):
    """Bradley-Terry with DIR's penalty, all with their graphs."""

    loss_preference: Tensor
    mi: Tensor | None
    """CLUB's estimate; None where it was dropped, because a logit was not finite."""
    total: Tensor


@public
def club_categorical(
    logits: Logits,
    labels: Classes,
    *,
    past_labels: PastClasses | None = None,
    clamp: Clamp = "none",
) -> Tensor:
    """CLUB's upper bound of the information that logits have of labels: (N, C), (N,) -> ().

    `mean_i log q(b_i | i) - mean_i mean_j log q(b_j | i)`, computed as a covariance. A label of -1
    leaves its pair out. `past_labels` (Q,) join the second mean, so that a batch of one pair has
    something to be compared with. Exactly 0 for one pair or one class without past labels, and for
    constant logits. Not bounded: a wrong head gives less than 0, which `clamp="zero"` cuts off.
    """
    past_Q = None if past_labels is None else _known("past_labels", past_labels, logits)
    return club(logits, _known("labels", labels, logits), past_Q, clamp)


@public
def bias_head_loss(logits: Logits, labels: Classes) -> Tensor:
    """Mean cross entropy, which the head alone minimises: (N, C), (N,) -> (); 0 without a label."""
    return head_cross_entropy(logits, _known("labels", labels, logits))


@public
def total_loss(
    h_chosen: States,
    h_rejected: States,
    r_chosen: PairScores,
    r_rejected: PairScores,
    bias_label: Classes,
    lam: NonNegative = 1.0,
    representation: Representation = "difference",
    head: Head | None = None,
    *,
    clamp: Clamp = "none",
) -> DirLoss:
    """`mean -log sigma(r_w - r_l) + lam * CLUB(head(x), b)`: (N, d) twice, (N,) three times.

    x is `h_chosen - h_rejected` or, for `concat`, both side by side. `head` maps x to logits (N, C):
    a function or module, or its weights {W1, b1, W2, b2} (a ReLU between) or {W, b}. Gradients reach
    the states and the rewards; detach the head's own weights by giving a head that does not train.
    With `lam` 0 the total is Bradley-Terry's loss itself.
    """
    pair = bradley_terry_loss.plain(r_chosen, r_rejected)
    logits_NC = _apply(head, represent(h_chosen, h_rejected, representation))
    labels_N = _known("bias_label", bias_label, logits_NC)
    if not logits_NC.isfinite().all():
        return DirLoss(pair, None, pair)
    mi = club(logits_NC, labels_N, clamp=clamp)
    return DirLoss(pair, mi, pair + lam * mi if lam else pair)


# The same without checks: no value is looked at, for that would wait for the device.


def represent(h_chosen: Tensor, h_rejected: Tensor, kind: Representation = "difference") -> Tensor:
    """What the head sees of a pair: (N, d) twice -> (N, d) or (N, 2 d)."""
    if kind == "concat":
        return torch.cat([h_chosen, h_rejected], 1)
    return h_chosen - h_rejected


def club(
    logits_NC: Tensor, labels_N: Tensor, past_Q: Tensor | None = None, clamp: Clamp = "none"
) -> Tensor:
    """`club_categorical` without its checks; labels are int64."""
    weight_NC, shift_C = club_weights(logits_NC, labels_N, past_Q)
    estimate = club_sum(logits_NC, weight_NC, shift_C)
    return estimate.clamp(min=0) if clamp == "zero" else estimate


def club_weights(
    logits_NC: Tensor, labels_N: Tensor, past_Q: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`CLUB = club_sum(logits, weight, shift)`: weights (N, C) and shift (C,), without a graph.

    The weights depend on the labels alone, so that parts of a batch add up to the whole.
    """
    one_hot_NC, known_N = _one_hot(labels_N, logits_NC)
    count = known_N.sum().clamp(min=1)
    # A shift by column changes no covariance, and makes that of constant logits exactly 0.
    shift_C = logits_NC[:1].detach().sum(0)
    share_C = one_hot_NC.sum(0) / count
    if past_Q is not None and len(past_Q):
        past_QC, past_known_Q = _one_hot(past_Q, logits_NC)
        seen = (known_N.sum() + past_known_Q.sum()).clamp(min=1)
        share_C = (one_hot_NC.sum(0) + past_QC.sum(0)) / seen
        shift_C = torch.zeros_like(shift_C)
    return (one_hot_NC - share_C) * known_N[:, None] / count, shift_C


def club_sum(logits_NC: Tensor, weight_NC: Tensor, shift_C: Tensor) -> Tensor:
    """`sum((logits - shift) * weight)` of all pairs or of some of them.

    The weights of a pair add up to 0, so that its largest logit can be taken from all of them: large
    logits then lose no digits in float32.
    """
    moved_NC = logits_NC - shift_C
    return ((moved_NC - moved_NC.detach().amax(1, keepdim=True)) * weight_NC).sum()


def head_cross_entropy(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """`bias_head_loss` without its checks; labels are int64."""
    known_N = labels_N >= 0
    each_N = functional.cross_entropy(logits_NC, labels_N.clamp(min=0), reduction="none")
    return (each_N * known_N).sum() / known_N.sum().clamp(min=1)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], group: ProcessGroup | None) -> Tensor:
        from torch import distributed

        ctx.sizes, ctx.group = sizes, group
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded.contiguous(), group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from torch import distributed

        # Every process holds the whole loss; the sum is W times the local slice's gradient, and
        # the averaging of gradients over W processes takes the W out again.
        gradient = gradients[0].contiguous().clone()
        distributed.all_reduce(gradient, group=ctx.group)
        place = distributed.get_rank(ctx.group)
        start = sum(ctx.sizes[:place])
        return gradient[start : start + ctx.sizes[place]], None, None


def gather_rows(rows: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Rows of all processes, in their order, with gradients that are right under averaging.

    (N_r, ...) on process r -> (sum N_r, ...). Processes may have different numbers of rows. Without
    a process group it is `rows` itself.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return rows
    own = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.zeros_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(sizes, own, group=group)
    return _GatherRows.apply(rows, [int(size) for size in sizes], group)  # type: ignore[no-any-return, no-untyped-call]


# Baselines: what DIR is compared with.


@public
def length_penalty(rewards: PairScores, lengths: PairScores, alpha: NonNegative = 0.001) -> Tensor:
    """`r - alpha * length`, after training: (N,), (N,) -> (N,). Assumes a straight line."""
    return rewards - alpha * lengths


@public
def pearson_penalty(rewards: PairScores, attribute: PairScores) -> Tensor:
    """`|correlation|` of rewards and an attribute over a batch, with its gradient: (N,) twice -> ().

    ODIN's length loss (arXiv 2402.07319). It sees straight lines only; 0 where one of the two does
    not vary.
    """
    values_N = attribute.to(rewards)
    if _is_constant(rewards) or _is_constant(values_N):
        return rewards.sum() * 0.0
    left, right = rewards - rewards.mean(), values_N - values_N.mean()
    scale: Tensor = torch.linalg.vector_norm(left) * torch.linalg.vector_norm(right)
    return ((left * right).sum() / scale).abs()


@public
def product_of_experts_loss(
    r_chosen: PairScores, r_rejected: PairScores, bias_chosen: PairScores, bias_rejected: PairScores
) -> Tensor:
    """Bradley-Terry of reward plus a second expert that sees the attribute alone: (N,) -> ().

    Both are trained by it; later the reward is used without the other (arXiv 2310.05199).
    """
    return bradley_terry_loss.plain(r_chosen + bias_chosen, r_rejected + bias_rejected)


def _is_constant(values_N: Tensor) -> bool:
    if not len(values_N):
        return True
    low, high = values_N.detach().aminmax()
    return bool(high - low <= 1e-6 * max(1.0, float(high.abs())))


def _one_hot(labels_N: Tensor, like_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with a 1 at the label, all 0 where it is left out; and which are known."""
    known_N = labels_N >= 0
    one_hot_NC = functional.one_hot(labels_N.clamp(min=0), like_NC.shape[1]).to(like_NC.dtype)
    return one_hot_NC * known_N[:, None], known_N.to(like_NC.dtype)


def _known(what: str, labels_N: Tensor, logits_NC: Tensor) -> Tensor:
    classes = logits_NC.shape[1]
    if bool((labels_N >= classes).any()):
        got = int(labels_N.max())
        raise refused(
            what, got, f"0 to {classes - 1}, the classes of the logits, or -1 to leave out"
        )
    return labels_N.to(logits_NC.device)


def _apply(head: Head | None, pairs_ND: Tensor) -> Tensor:
    """Logits of a head that is a function or a table of weights."""
    if isinstance(head, Mapping):
        layers = [(head.get(f"W{n}"), head.get(f"b{n}")) for n in ("", "1", "2")]
        given = [(weight, bias) for weight, bias in layers if weight is not None]
        if not given:
            raise refused("head", sorted(map(str, head)), "W1, b1, W2 and b2, or W and b")
        for place, (weight, bias) in enumerate(given):
            pairs_ND = _linear(torch.relu(pairs_ND) if place else pairs_ND, weight, bias)
        return pairs_ND
    if not callable(head):
        raise refused("head", head, "a function from (N, d) to logits (N, C), or its weights")
    return head(pairs_ND)


def _linear(rows_ND: Tensor, weight: Any, bias: Any) -> Tensor:
    """A layer whose weight is (out, in) as torch has it, or (in, out)."""
    matrix = as_logp(weight, "head").to(rows_ND)
    if matrix.ndim != 2 or rows_ND.shape[1] not in matrix.shape:
        raise refused("head", weight, f"a weight for {rows_ND.shape[1]} features")
    if matrix.shape[1] != rows_ND.shape[1]:
        matrix = matrix.T
    shift = None if bias is None else as_logp(bias, "head").to(rows_ND)
    if shift is not None and shift.shape not in ((), (len(matrix),)):
        raise refused("head", bias, f"a bias for {len(matrix)} units")
    return functional.linear(rows_ND, matrix, shift)
