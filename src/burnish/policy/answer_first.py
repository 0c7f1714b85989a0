"""Answers whose first token is the grade: read it, and distil it (AFRL, arXiv 2602.10006).

A grade that is one vocabulary item at the first place of a response costs one step of decoding to
serve. `first_token_grade` reads it from the logits of that place, and `answer_kd` teaches a small
model the whole distribution of a teacher over the grades, not only its choice. The paper's own
equations were not readable; these are the plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

from msgspec import Meta

from burnish.boundary import UNREAD, Positive, public
from burnish.errors import ArgumentError, UserError
from burnish.tensors import LARGEST, torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    Logits = Float[Tensor, " C"] | Float[Tensor, "B C"]
    Weights = Annotated[Logits, Meta(ge=0, le=LARGEST)]


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


@public
def first_token_grade(
    logits: Annotated[Float[Tensor, " V"] | Float[Tensor, "B V"], UNREAD],
    label_ids: Int[Tensor, " C"],
) -> FirstTokenGrade:
    """The grade in the logits of a response's first place: (V,) or (B, V) and C ids.

    Other tokens' logits do not matter. Of equally likely labels the first one is the grade.
    """
    ids, size = label_ids.tolist(), logits.shape[-1]
    if not 2 <= len(ids) == len(set(ids)) or not 0 <= min(ids) <= max(ids) < size:
        raise ArgumentError(
            f"label_ids: got {ids}, expected at least two different ids from 0 to {size - 1}"
        )
    chosen = logits.index_select(-1, label_ids.to(logits.device))
    # Without one finite label there is nothing to choose; an argmax would still name a grade.
    if chosen.isnan().any() or not (chosen.amax(-1).abs() < torch.inf).all():
        raise ArgumentError("logits: those of the labels are not finite, so there is no grade")
    probabilities = chosen.softmax(-1)
    places_C = torch.arange(len(ids), dtype=probabilities.dtype, device=logits.device)
    return FirstTokenGrade(chosen.argmax(-1), probabilities, (probabilities * places_C).sum(-1))


@public
def answer_kd(
    student_logits: Logits,
    teacher_probs: Weights,
    temperature: Positive = 2.0,
    *,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """`T^2 KL(teacher_T || student_T)` over the labels: (C,) or (B, C) twice -> ().

    The teacher is tempered as `p^(1/T)`, made to sum to 1 again; the student by dividing its label
    logits by T. The mean over rows, or with `reduction="none"` one value a row, (B,).
    Differentiable in `student_logits`.
    """
    teacher = teacher_probs.to(student_logits.device, torch.float64)
    if not student_logits.numel() or not (teacher.sum(-1) > 0).all():
        raise ArgumentError("teacher_probs: expected some number above 0 in each row")
    teacher = (teacher / teacher.sum(-1, keepdim=True)).clamp(min=LEAST_PROBABILITY)
    goal = (teacher.log() / temperature).log_softmax(-1).to(student_logits.dtype)
    found = (student_logits / temperature).log_softmax(-1)
    rows = temperature**2 * (goal.exp() * (goal - found)).sum(-1)
    return rows if reduction == "none" else rows.mean()


@public
def label_tokens(tokenizer: Encoder, labels: Sequence[str], before: str = "") -> tuple[int, ...]:
    """The vocabulary item of each label at the place where an answer begins.

    `before` is the text that the answer follows, for example a rendered prompt. A label that is
    several items, or none of its own, is refused: one step of decoding could not say it.
    """
    found: dict[int, str] = {}
    for label in labels:
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
