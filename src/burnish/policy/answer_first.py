"""Answers whose first token is the grade: read it, and distil it (AFRL, arXiv 2602.10006).

A grade that is one vocabulary item at the first place of a response costs one step of decoding to
serve. `first_token_grade` reads it from the logits of that place, and `answer_kd` teaches a small
model the whole distribution of a teacher over the grades, not only its choice. The paper's own
equations were not readable; these are the plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from burnish.arguments import as_list, as_number, as_text, as_texts, as_whole, as_word, refused
from burnish.errors import ArgumentError, UserError
from burnish.tensors import as_float64, as_logp, check_finite, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers


LEAST_PROBABILITY = 1e-8
"""A teacher's probability of 0 is taken as this, so that its logarithm exists."""


class Encodes(Protocol):
    """What makes ids of a text."""

    def encode(self, text: str, /) -> list[int]: ...


class Encoder(Encodes, Protocol):
    """What is asked of a tokenizer here."""

    def decode(self, ids: Sequence[int]) -> str: ...


class FirstTokenGrade(NamedTuple):
    """What the first token says; () each for one answer, (B,) for several."""

    grade: Tensor
    """int64: position of the likeliest label."""
    probabilities: Tensor
    """(C,) or (B, C): softmax over the labels alone."""
    score: Tensor
    """The expected grade, `sum_c c p_c`, for ranking."""


def first_token_grade(logits: Numbers, label_ids: Sequence[int] | Tensor) -> FirstTokenGrade:
    """The grade in the logits of a response's first place: (V,) or (B, V) and C ids.

    Other tokens' logits do not matter. Of equally likely labels the first one is the grade.
    """
    values = as_logp(logits, "logits")
    ids = [as_whole("label_ids", one) for one in as_list("label_ids", label_ids)]
    if not 2 <= len(ids) == len(set(ids)):
        raise refused("label_ids", label_ids, "at least two different ids")
    ids_C = torch.tensor(ids, device=values.device)
    if values.ndim not in (1, 2):
        raise ArgumentError(f"logits: got shape {tuple(values.shape)}, expected (V,) or (B, V)")
    size = values.shape[-1]
    if not 0 <= min(ids) <= max(ids) < size:
        raise ArgumentError(f"label_ids: got {ids}, expected ids from 0 to {size - 1}")
    chosen = values.index_select(-1, ids_C)
    # Without one finite label there is nothing to choose; an argmax would still name a grade.
    if chosen.isnan().any() or not (chosen.amax(-1).abs() < torch.inf).all():
        raise ArgumentError("logits: those of the labels are not finite, so there is no grade")
    probabilities = chosen.softmax(-1)
    places_C = torch.arange(len(ids_C), dtype=probabilities.dtype, device=values.device)
    return FirstTokenGrade(chosen.argmax(-1), probabilities, (probabilities * places_C).sum(-1))


def answer_kd(
    student_logits: Numbers,
    teacher_probs: Numbers,
    temperature: float = 2.0,
    *,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """`T^2 KL(teacher_T || student_T)` over the labels: (C,) or (B, C) twice -> ().

    The teacher is tempered as `p^(1/T)`, made to sum to 1 again; the student by dividing its label
    logits by T. The mean over rows, or with `reduction="none"` one value a row, (B,).
    Differentiable in `student_logits`.
    """
    student = as_logp(student_logits, "student_logits")
    check_finite(student, "student_logits")
    return answer_divergence(student, teacher_probs, temperature, reduction=reduction)


def answer_divergence(
    student_logits: Tensor, teacher_probs: Numbers, temperature: float, *, reduction: str
) -> Tensor:
    """`answer_kd` inside a loss: the student's values are left to the guards of training."""
    temperature = as_number("temperature", temperature, above=0)
    as_word("reduction", reduction, ("mean", "none"))
    student = as_logp(student_logits)
    teacher = as_float64(teacher_probs, "teacher_probs").to(student.device)
    if teacher.shape != student.shape or student.ndim not in (1, 2) or not student.numel():
        raise ArgumentError(
            f"teacher_probs: got shape {tuple(teacher.shape)}, expected that of the student's "
            f"label logits, {tuple(student.shape)}: (C,) or (B, C)"
        )
    if not ((teacher >= 0) & (teacher < torch.inf)).all() or not (teacher.sum(-1) > 0).all():
        raise ArgumentError(
            "teacher_probs: expected numbers of at least 0, some above 0 in each row"
        )
    teacher = (teacher / teacher.sum(-1, keepdim=True)).clamp(min=LEAST_PROBABILITY)
    goal = (teacher.log() / temperature).log_softmax(-1).to(student.dtype)
    found = (student / temperature).log_softmax(-1)
    rows = temperature**2 * (goal.exp() * (goal - found)).sum(-1)
    return rows if reduction == "none" else rows.mean()


def label_tokens(tokenizer: Encoder, labels: Sequence[str], before: str = "") -> tuple[int, ...]:
    """The vocabulary item of each label at the place where an answer begins.

    `before` is the text that the answer follows, for example a rendered prompt. A label that is
    several items, or none of its own, is refused: one step of decoding could not say it.
    """
    found: dict[int, str] = {}
    as_text("before", before)
    for label in as_texts("labels", labels):
        ids = answer_ids(tokenizer, label, before)
        if len(ids) != 1 or tokenizer.decode(ids).strip() != label.strip() or not label.strip():
            pieces = ", ".join(repr(tokenizer.decode([token])) for token in ids) or "nothing"
            raise UserError(
                f"label {label!r} is not one item of the model's vocabulary but {pieces}; expected "
                "one, because the first token is the whole answer. Choose other labels, such as "
                "single letters or digits."
            )
        if ids[0] in found:
            raise UserError(
                f"labels {found[ids[0]]!r} and {label!r} are the same item of the model's "
                "vocabulary; expected one of its own for each. Choose other labels."
            )
        found[ids[0]] = label
    if len(found) < 2:
        raise UserError(f"labels: got {list(labels)}, expected at least two grades")
    return tuple(found)


def answer_ids(tokenizer: Encodes, text: str, before: str = "") -> tuple[int, ...]:
    """Tokens of an answer where it really begins: behind the text before it.

    Some tokenizers put a blank before a text that stands alone. Where the two texts would melt
    into one token at their border the answer is encoded on its own, because sampling starts
    behind whole tokens.
    """
    prefix = tokenizer.encode(before) if before else []
    joined = tokenizer.encode(before + text)
    if joined[: len(prefix)] == prefix:
        return tuple(joined[len(prefix) :])
    return tuple(tokenizer.encode(text))
