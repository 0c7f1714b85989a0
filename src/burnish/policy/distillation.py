"""Divergence between a teacher's and a student's next-token distributions, for distillation.

`reverse`, KL(student || teacher), makes the student seek modes of the teacher and is the choice on
the student's own samples (arXiv 2306.13649, 2306.08543); `forward`, KL(teacher || student), covers
them all. `sampled` estimates the reverse one from the log-probs of sampled tokens alone: value
`log p - log q`, whose gradient, with the factor detached, is that of the reverse KL in expectation.

With `top_k` the divergence is over the k likeliest tokens of the distribution it is an expectation
of, and one bucket for all others. The bucket keeps it a divergence: it is at least 0, at most the
full one, rises with k and is exact where k is the vocabulary. Without it (as some released code
has it) the sum can be negative. The teacher never gets a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.arguments import as_number, as_whole, as_word, refused
from burnish.errors import ArgumentError
from burnish.policy.auxiliary import kl_estimate
from burnish.tensors import as_logp, as_mask, check_finite, check_shape, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

DIVERGENCES = ("reverse", "forward")
LEAST_LOGP = -100.0
"""A teacher's log-prob below this is taken as this: a token that it forbids stays finite."""


def token_reverse_kl(
    student_logits: Numbers, teacher_logits: Numbers, *, temperature: float = 1.0, top_k: int = 0
) -> Tensor:
    """KL(student || teacher) of each token, in nats: (..., V) twice -> (...).

    Both logits are divided by `temperature`; the result is not multiplied by its square. `top_k` 0
    is the whole vocabulary. A teacher's logit may be -inf. Differentiable in `student_logits`.
    """
    student, teacher = _checked(student_logits, teacher_logits, temperature, top_k)
    return token_divergence(student, teacher, "reverse", temperature, int(top_k))


def token_forward_kl(
    student_logits: Numbers, teacher_logits: Numbers, *, temperature: float = 1.0, top_k: int = 0
) -> Tensor:
    """KL(teacher || student) of each token, in nats: (..., V) twice -> (...).

    As `token_reverse_kl`, with the teacher's k likeliest tokens.
    """
    student, teacher = _checked(student_logits, teacher_logits, temperature, top_k)
    return token_divergence(student, teacher, "forward", temperature, int(top_k))


def sampled_kl(logp: Numbers, teacher_logp: Numbers) -> Tensor:
    """An estimate of KL(student || teacher) for each token that the student sampled; any shape.

    The value is `logp - teacher_logp`, the gradient `(logp - teacher_logp) grad logp`: both are
    right in expectation over the student's samples, and one value may be negative.
    """
    own, other = as_logp(logp, "logp"), as_logp(teacher_logp, "teacher_logp")
    check_finite(own, "logp")
    check_finite(other, "teacher_logp")
    check_shape(other, "teacher_logp", tuple(own.shape))
    return kl_estimate(own, other.detach().to(own.device), "k1+")


def distil_loss(
    student_logits: Numbers,
    teacher_logits: Numbers,
    mask: Numbers,
    divergence: str = "reverse",
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    tokens: float | None = None,
) -> Tensor:
    """Mean divergence over the unmasked tokens: (..., V), (..., V), (...) -> ().

    0 where all are masked. `tokens` is the denominator of the whole batch where this is a part of
    it, so that parts add up to the whole however the batch is cut.
    """
    as_word("divergence", divergence, DIVERGENCES)
    student, teacher = _checked(student_logits, teacher_logits, temperature, top_k)
    is_used = as_mask(mask, "mask", tuple(student.shape[:-1])).to(student.device)
    if tokens is not None:
        tokens = as_number("tokens", tokens, low=0)
    # Only the unmasked tokens are computed at all: what stands elsewhere can have no gradient.
    used = token_divergence(student[is_used], teacher[is_used], divergence, temperature, int(top_k))
    return used.sum() / max(used.numel() if tokens is None else tokens, 1)


def token_divergence(
    student: Tensor, teacher: Tensor, divergence: str, temperature: float, top_k: int
) -> Tensor:
    """The divergence inside a loss: no value is looked at, for that would wait for the device."""
    student, teacher = student / temperature, teacher.detach().to(student.dtype) / temperature
    size = student.shape[-1]
    if 0 < top_k < size:
        leader = student.detach() if divergence == "reverse" else teacher
        ids = leader.topk(top_k, dim=-1).indices
        student, teacher = _bucketed(student, ids), _bucketed(teacher, ids)
    log_p, log_q = student.log_softmax(-1), teacher.log_softmax(-1).clamp(min=LEAST_LOGP)
    if divergence == "forward":
        log_p, log_q = log_q, log_p
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _bucketed(logits: Tensor, ids: Tensor) -> Tensor:
    """The logits at `ids`, (..., k), and the log of the summed rest: (..., k + 1)."""
    rest = logits.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, ids), rest], dim=-1)


def _checked(
    student_logits: Numbers, teacher_logits: Numbers, temperature: float, top_k: int
) -> tuple[Tensor, Tensor]:
    student = as_logp(student_logits, "student_logits")
    teacher = as_logp(teacher_logits, "teacher_logits").to(student.device)
    if not student.ndim or not student.shape[-1]:
        raise refused("student_logits", student_logits, "shape (..., V)")
    check_shape(teacher, "teacher_logits", tuple(student.shape))
    check_finite(student, "student_logits")
    if (teacher.isnan() | (teacher == torch.inf)).any() or (teacher == -torch.inf).all(-1).any():
        raise ArgumentError(
            "teacher_logits: expected numbers or -inf, with a finite one for every token"
        )
    as_number("temperature", temperature, above=0)
    as_whole("top_k", top_k, low=0)
    return student, teacher
