"""Divergence between a teacher's and a student's next-token distributions, for distillation.

`reverse`, KL(student || teacher), seeks modes of the teacher and is the choice on the student's own
samples (arXiv 2306.13649, 2306.08543); `forward` covers them all. `sampled` estimates the reverse one
from the log-probs of sampled tokens alone: value `log p - log q`, whose gradient, with the factor
detached, is that of the reverse KL in expectation.

With `top_k` the divergence is over the k likeliest tokens and one bucket for all others (`support =
"tail"`): at least 0, at most the full one. Supports without the bucket are those of released code
(PolicyAlign, arXiv 2606.25442): their sum is biased and can be negative; with `renormalise` it is a
divergence again, and always 0 for k = 1. The teacher never gets a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from burnish.boundary import UNREAD, Count, NonNegative, Positive, Share, public
from burnish.errors import ArgumentError
from burnish.policy.auxiliary import kl_estimate
from burnish.tensors import as_float64, as_logp, check_finite, check_shape, torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    Logits = Float[Tensor, "*S V"]
    # A teacher may forbid a token with -inf.
    TeacherLogits = Annotated[Float[Tensor, "*S V"], UNREAD]
    TokenMask = Bool[Tensor, "*S"]
    Logp = Float[Tensor, "*S"]

Support = Literal["tail", "student-topk", "union-topk"]
Score = Literal["kl", "first-token"]
LEAST_LOGP = -100.0
"""A teacher's log-prob below this is taken as this: a token that it forbids stays finite."""


@public
def token_reverse_kl(
    student_logits: Logits,
    teacher_logits: TeacherLogits,
    *,
    temperature: Positive = 1.0,
    top_k: Count = 0,
    support: Support = "tail",
    renormalise: bool = False,
    kl_clip: Positive | None = None,
) -> Tensor:
    """KL(student || teacher) of each token, in nats: (..., V) twice -> (...).

    >>> [round(x, 4) for x in token_reverse_kl([[0.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]).tolist()]
    [0.1201, 0.0]

    Both logits are divided by `temperature`; the result is not multiplied by its square. `top_k` 0
    is the whole vocabulary; else `support` says which tokens are summed over: `tail` (k tokens and
    a bucket for the rest), `student-topk` (as PolicyAlign's code; may be negative) or `union-topk`,
    both with probabilities of the whole vocabulary unless `renormalise`. `kl_clip` is the most that
    one token may count; a token above it has no gradient. A teacher's logit may be -inf.
    Differentiable in `student_logits`.
    """
    _check_teacher(student_logits, teacher_logits)
    how = "reverse", temperature, top_k, support, renormalise, kl_clip or 0.0
    return token_divergence(student_logits, teacher_logits, *how)


@public
def token_forward_kl(
    student_logits: Logits,
    teacher_logits: TeacherLogits,
    *,
    temperature: Positive = 1.0,
    top_k: Count = 0,
) -> Tensor:
    """KL(teacher || student) of each token, in nats: (..., V) twice -> (...).

    As `token_reverse_kl`, with the teacher's k likeliest tokens.
    """
    _check_teacher(student_logits, teacher_logits)
    return token_divergence(student_logits, teacher_logits, "forward", temperature, top_k)


@public
def aggregate(token_losses: Logp, mask: TokenMask, *, tokens: NonNegative | None = None) -> Tensor:
    """Mean loss over the unmasked tokens: (...), (...) -> (); 0 where all are masked.

    >>> aggregate([[1.0, 2.0], [3.0, 9.0]], [[1, 1], [1, 0]]).item()
    2.0

    `tokens` is the denominator of the whole batch where this is a part of it: micro-batches are
    then weighted by their tokens, not by their rows, and add up to the whole.
    """
    count = float(mask.sum()) if tokens is None else tokens
    return token_losses.masked_fill(~mask, 0.0).sum() / max(count, 1.0)


@public
def ema(teacher: object, student: object, decay: Share, *, buffers: Sequence[str] = ()) -> Any:
    """The teacher's weights after an update of the student: decay * teacher + (1 - decay) * student.

    >>> ema({"w": [1.0, 0.0]}, {"w": [0.0, 1.0]}, decay=0.75)["w"].tolist()
    [0.75, 0.25]

    Takes tables of weights by name, or one tensor. `decay` 1 keeps the teacher, 0 takes the student.
    What is no float (counters, masks) and what `buffers` names is copied from the student.
    """
    if not isinstance(teacher, Mapping):
        return _averaged(teacher, student, decay, "")
    if not isinstance(student, Mapping) or student.keys() != teacher.keys():
        got = "no table"
        if isinstance(student, Mapping):
            odd = sorted(map(str, teacher.keys() ^ student.keys()))
            got = f"other names ({', '.join(odd[:3])})"
        raise ArgumentError(f"student: got {got}, expected the weights that the teacher has")
    return {
        name: torch.as_tensor(student[name]).clone()
        if name in buffers
        else _averaged(teacher[name], student[name], decay, f" ({name})")
        for name in teacher
    }


@public
def policy_sensitivity(
    student_logits: Float[Tensor, "*B T V"],
    teacher_logits: Annotated[Float[Tensor, "*B T V"], UNREAD],
    mask: Bool[Tensor, "*B T"],
    *,
    score: Score = "kl",
    top_k: Count = 0,
) -> Tensor:
    """How much a policy in the context changes each response: (..., T, V) twice, (..., T) -> (...).

    >>> policy_sensitivity([[[0.0, 0.0], [0.0, 1.0]]], [[[0.0, 1.0], [0.0, 1.0]]], [[1, 1]]).shape
    torch.Size([1])

    `kl`: mean of KL(student || teacher) over the response's tokens, the very quantity that training
    lowers; `first-token`: the one of the first unmasked token. A response without a token has no
    score and is refused: leave it out.
    """
    _check_teacher(student_logits, teacher_logits)
    if not bool(mask.any(-1).all()):
        row = (~mask.any(-1)).nonzero()[0].tolist()
        raise ArgumentError(
            f"mask: row {row[0] if row else 0} has no token, expected one at least; leave the row out"
        )
    kl = token_divergence(student_logits, teacher_logits, "reverse", 1.0, top_k)
    return sensitivity_of(kl.masked_fill(~mask, 0.0), mask, score)


def sensitivity_of(kl_BT: Tensor, mask_BT: Tensor, score: str) -> Tensor:
    """A response's score from the divergence of its tokens, one at least: (..., T) twice -> (...)."""
    if score != "first-token":
        return kl_BT.sum(-1) / mask_BT.sum(-1)
    is_first = mask_BT & (mask_BT.cumsum(-1) == 1)
    return torch.where(is_first, kl_BT, 0.0).sum(-1)


@public
def sampled_kl(logp: Logp, teacher_logp: Logp) -> Tensor:
    """An estimate of KL(student || teacher) for each token that the student sampled; any shape.

    The value is `logp - teacher_logp`, the gradient `(logp - teacher_logp) grad logp`: both are
    right in expectation over the student's samples, and one value may be negative.
    """
    return kl_estimate(logp, teacher_logp.detach(), "k1+")


@public
def distil_loss(
    student_logits: Logits,
    teacher_logits: TeacherLogits,
    mask: TokenMask,
    divergence: Literal["reverse", "forward"] = "reverse",
    *,
    temperature: Positive = 1.0,
    top_k: Count = 0,
    tokens: NonNegative | None = None,
) -> Tensor:
    """Mean divergence over the unmasked tokens: (..., V), (..., V), (...) -> ().

    0 where all are masked. `tokens` is the denominator of the whole batch where this is a part of
    it, so that parts add up to the whole however the batch is cut.
    """
    _check_teacher(student_logits, teacher_logits)
    # Only the unmasked tokens are computed at all: what stands elsewhere can have no gradient.
    how = divergence, temperature, top_k
    used = token_divergence(student_logits[mask], teacher_logits[mask], *how)
    return used.sum() / max(used.numel() if tokens is None else tokens, 1)


def token_divergence(
    student: Tensor,
    teacher: Tensor,
    divergence: str,
    temperature: float,
    top_k: int,
    support: str = "tail",
    renormalise: bool = False,
    kl_clip: float = 0.0,
) -> Tensor:
    """The divergence inside a loss: no value is looked at, for that would wait for the device.

    `kl_clip` 0 clips nothing.
    """
    student, teacher = student / temperature, teacher.detach().to(student.dtype) / temperature
    size = student.shape[-1]
    is_in = None
    if 0 < top_k < size:
        leader, other = student.detach(), teacher
        if divergence == "forward":
            leader, other = other, leader
        ids = leader.topk(top_k, dim=-1).indices
        if support == "tail":
            student, teacher = _bucketed(student, ids), _bucketed(teacher, ids)
        else:
            is_in = torch.zeros_like(student, dtype=torch.bool).scatter(-1, ids, True)
            if support == "union-topk":
                is_in = is_in.scatter(-1, other.topk(top_k, dim=-1).indices, True)
            if renormalise:
                student = student.masked_fill(~is_in, -torch.inf)
                teacher = teacher.masked_fill(~is_in, -torch.inf)
    log_p, log_q = student.log_softmax(-1), teacher.log_softmax(-1).clamp(min=LEAST_LOGP)
    if is_in is not None:
        # Equal log-probs outside of the support: nothing is summed there, and no -inf is met.
        log_p, log_q = log_p.masked_fill(~is_in, 0.0), log_q.masked_fill(~is_in, 0.0)
    if divergence == "forward":
        log_p, log_q = log_q, log_p
    found = (log_p.exp() * (log_p - log_q)).sum(-1)
    return found.clamp(max=kl_clip) if kl_clip else found


def _averaged(teacher: Any, student: Any, decay: float, what: str) -> Tensor:
    """One weight of the teacher and the student's, averaged in at least float32."""
    old, new = (
        one if isinstance(one, torch.Tensor) else as_float64(one, f"{who}{what}")
        for one, who in ((teacher, "teacher"), (student, "student"))
    )
    check_shape(new, f"student{what}", tuple(old.shape))
    if not old.is_floating_point():
        return new.detach().clone()
    wide = as_logp(old.detach(), f"teacher{what}")
    check_finite(wide, f"teacher{what}")
    check_finite(as_logp(new, f"student{what}"), f"student{what}")
    return (decay * wide + (1 - decay) * new.detach().to(wide)).to(old.dtype)


def _bucketed(logits: Tensor, ids: Tensor) -> Tensor:
    """The logits at `ids`, (..., k), and the log of the summed rest: (..., k + 1)."""
    rest = logits.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, ids), rest], dim=-1)


def _check_teacher(student: Tensor, teacher: Tensor) -> None:
    if (teacher.isnan() | (teacher == torch.inf)).any() or (teacher == -torch.inf).all(-1).any():
        raise ArgumentError(
            "teacher_logits: expected numbers or -inf, with a finite one for every token"
        )
