"""The loss on pairs of answers, Bradley-Terry, and what may be added to it: terms.

`P(chosen is better) = sigma(r_chosen - r_rejected)`; with a margin m (Llama 2, arXiv 2307.09288,
eq. 2) the loss is `-log sigma(r_chosen - r_rejected - m)`. A target t other than 1 is a label that
is right with probability t; 0.5 is a tie. Scores are free up to a constant for each prompt; centring
takes that freedom away (Eisenstein et al., arXiv 2312.09244, eq. 5).

A term is one entry of `train.terms` of the kinds of training `reward_model` and `dpo`. It sees the
pairs as data (texts, lengths, task fields), their last hidden states and their scores (of `dpo` the
implicit rewards), and may own weights, an optimiser and any other state; the model's optimiser never
moves them.

A step calls `begin` once, on every process and with all pairs of the update; then `loss` for each
micro-batch, whose totals add up to the term of the whole update however it is cut; then `finish`.
What a resumed run needs is in `state`. A term without a file of its own needs no line anywhere:
`terms = [{ kind = "function", path = "my_file.py:MyTerm", options = { ... } }]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from burnish.boundary import Name, Number, Settings, Share, public
from burnish.errors import UserError
from burnish.records import Task
from burnish.source import find_function
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Float64
    from torch import Tensor

    Scores = Float[Tensor, " B"]


@public
def bradley_terry_loss(
    r_chosen: Scores,
    r_rejected: Scores,
    *,
    margin: Float64[Tensor, " B"] | Number = 0.0,
    target: Annotated[Float64[Tensor, " B"], Meta(ge=0, le=1)] | Share = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """`-t log sigma(d) - (1 - t) log sigma(-d)`, `d = r_chosen - r_rejected - margin`: () or (B,).

    `margin` and `target` t are one number or (B,); without a target every label is right, t = 1.
    Differentiable in both scores.
    """
    margin_B, target_B = (
        one.to(r_chosen) if isinstance(one, torch.Tensor) else r_chosen.new_tensor(one)
        for one in (margin, target)
    )
    loss_B = pair_loss(r_chosen - r_rejected - margin_B, target_B)
    if reduction == "none":
        return loss_B
    return loss_B.sum() if reduction == "sum" else loss_B.mean()


@public
def centring_loss(r_chosen: Scores, r_rejected: Scores) -> Tensor:
    """Mean of `(r_chosen + r_rejected)^2`: (B,), (B,) -> (); least where scores lie around 0."""
    return (r_chosen + r_rejected).square().mean()


def pair_loss(difference_B: Tensor, target_B: Tensor) -> Tensor:
    """`bradley_terry_loss` of each pair, without checks: inside a loss no value is looked at."""
    log_sigmoid = torch.nn.functional.logsigmoid
    return -target_B * log_sigmoid(difference_B) - (1 - target_B) * log_sigmoid(-difference_B)


class Pair(NamedTuple):
    """Two answers to one task, and which of them is preferred."""

    task: Task
    """With all its fields, such as `meta`."""
    chosen: str
    rejected: str
    margin: float = 0.0
    """By how much the scores should at least differ."""
    target: float = 1.0
    """Probability that `chosen` is the better one; 0.5 for a tie."""


class PairStates(NamedTuple):
    """The P pairs of one micro-batch as the model sees them; all but the last two with their graph."""

    chosen_PD: Tensor
    """Last hidden state of each preferred answer, float32 or float64."""
    rejected_PD: Tensor
    chosen_P: Tensor
    """Scores; of `dpo`, `beta` times the log-ratio to the reference."""
    rejected_P: Tensor
    places_P: Tensor
    """Place of each pair among the pairs that `begin` was given."""
    pairs: Sequence[Pair]


class TermLoss(NamedTuple):
    """A term of one micro-batch."""

    total: Tensor
    """0-d, divided so that the totals of an update's micro-batches, on all processes, add up."""
    sums: Mapping[str, Tensor] = {}
    """Detached; added up over micro-batches and processes for `finish`."""


class TermContext(NamedTuple):
    """What a term is built with."""

    name: str
    """Of its metrics: the loss is `loss/NAME`."""
    width: int
    """D, of a hidden state."""
    device: torch.device
    seed: int
    pairs: Callable[[int], Sequence[Pair]]
    """The first so many training pairs, for a report before the first step."""
    tokens: Callable[[str], int]
    """Length of an answer in tokens of the model."""


class TermState(NamedTuple):
    """What a checkpoint keeps of a term."""

    values: Mapping[str, Any] = {}
    """JSON-able."""
    tensors: Mapping[str, Tensor] = {}


class Term(ABC):
    """One term of a loss on pairs. What is not overridden does nothing."""

    def __init__(self, context: TermContext) -> None:
        self.context = context

    def begin(  # noqa: B027
        self, step: int, pairs: Sequence[Pair], hidden: Callable[[], tuple[Tensor, Tensor]]
    ) -> None:
        """Get ready for an update on these N pairs, the same ones on every process.

        `hidden()` computes their detached states with the weights of now, (N, D) each, equal on
        every process; it costs a forward pass, so ask once and only where they are needed. Called
        again for one step (a replay), a term must not move twice.
        """

    @abstractmethod
    def loss(self, states: PairStates, total: int) -> TermLoss:
        """The term of one micro-batch of an update of `total` pairs; must not wait for the device."""

    def finish(self, step: int, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Metrics of the step (`terms/NAME/...`), from the sums over all its micro-batches."""
        return {}

    def state(self) -> TermState:
        """What the next step needs of the ones before."""
        return TermState()

    def restore(self, state: TermState) -> None:  # noqa: B027
        """Go on from a checkpoint's `state()`."""


class TermConfig(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """Base of the settings of a term; `kind` names it in a recipe file."""

    # A name stands before those of its tensors and curves, parted by '/' and '.'.
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-]{0,60}\Z", description="up to 60 letters, digits, '_' and '-'"
        ),
    ] = ""
    """What the term is called in curves; the kind by default."""

    @property
    def title(self) -> str:
        return self.name or str(self.__struct_config__.tag)

    def build(self, context: TermContext) -> Term:
        """The term with these settings."""
        raise NotImplementedError


class FunctionTerm(TermConfig, frozen=True, tag="function"):
    """Your own term, by path: `my_file.py:MyTerm`, a class that inherits from `Term`."""

    path: Name
    """Your class: `my_file.py:MyTerm` or `package.module:MyTerm`."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Keyword arguments of the class, beside the context."""

    def build(self, context: TermContext) -> Term:
        found: Any = find_function(self.path, "term", Path())
        if not (isinstance(found, type) and issubclass(found, Term)):
            raise UserError(
                f"train.terms: {self.path} is {found!r}; expected a class that inherits from "
                "burnish.rewards.models.Term"
            )
        return found(context, **self.options)
