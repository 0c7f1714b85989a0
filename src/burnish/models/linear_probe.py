"""What can be read from features by a linear map: multinomial logistic regression, deterministic.

Features are standardised by the training rows. Always probe an untrained network of the same shape too:
random features carry more than one expects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from burnish.boundary import SOME, public
from burnish.errors import ArgumentError
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor


class Probe(NamedTuple):
    """What a linear map reads."""

    accuracy: float
    """Of the test rows."""
    majority: float
    """What the most frequent label of the training rows reaches there."""
    train_accuracy: float
    hits: list[bool]
    """Of each test row."""


@public
def linear_probe(
    train: Annotated[Float64[Tensor, "N D"], SOME],
    train_labels: Sequence[object],
    test: Annotated[Float64[Tensor, "M D"], SOME],
    test_labels: Sequence[object],
) -> Probe:
    """Features (N, D) and a label each; labels that were not trained on count as wrong.

    >>> found = linear_probe([[0.0], [1.0], [0.1], [0.9]], list("abab"), [[0.2], [0.8]], list("ab"))
    >>> found.accuracy, found.majority
    (1.0, 0.5)
    """
    if (len(train), len(test)) != (len(train_labels), len(test_labels)):
        raise ArgumentError("train_labels, test_labels: expected a label for each row of features")
    names = sorted({str(label) for label in train_labels})
    number = {name: place for place, name in enumerate(names)}
    target_N = torch.tensor([number[str(label)] for label in train_labels])
    mean_D, std_D = train.mean(0), train.std(0, correction=0).clamp(min=1e-8)
    x_ND, y_MD = (train - mean_D) / std_D, (test - mean_D) / std_D
    weight_DC = torch.zeros(x_ND.shape[1], len(names), dtype=x_ND.dtype, requires_grad=True)
    bias_C = torch.zeros(len(names), dtype=x_ND.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([weight_DC, bias_C], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        fit = torch.nn.functional.cross_entropy(x_ND @ weight_DC + bias_C, target_N)
        loss = fit + 1e-2 * weight_DC.square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    with torch.enable_grad():
        solver.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        said_N = (x_ND @ weight_DC + bias_C).argmax(1)
        said_M = (y_MD @ weight_DC + bias_C).argmax(1).tolist()
    hits = [names[place] == str(label) for place, label in zip(said_M, test_labels, strict=True)]
    (common, _), *_ = Counter(str(label) for label in train_labels).most_common(1)
    frequent = sum(str(label) == common for label in test_labels) / len(test_labels)
    trained = float((said_N == target_N).double().mean())
    return Probe(sum(hits) / len(hits), frequent, trained, hits)
