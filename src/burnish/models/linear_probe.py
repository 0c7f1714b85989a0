"""What can be read from features by a linear map: multinomial logistic regression, deterministic.

    found = linear_probe(train_features, train_labels, test_features, test_labels)
    found.accuracy, found.majority          # always beside what the most frequent label reaches

Features are standardised by the training rows. Always probe an untrained network of the same shape too:
random features carry more than one expects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_number, as_whole
from burnish.errors import ArgumentError
from burnish.tensors import as_finite, torch

if TYPE_CHECKING:
    from burnish.tensors import Numbers


class Probe(NamedTuple):
    """What a linear map reads."""

    accuracy: float
    """Of the test rows."""
    majority: float
    """What the most frequent label of the training rows reaches there."""
    train_accuracy: float
    hits: list[bool]
    """Of each test row."""


def linear_probe(
    train: Numbers,
    train_labels: Sequence[object],
    test: Numbers,
    test_labels: Sequence[object],
    *,
    penalty: float = 1e-2,
    steps: int = 200,
) -> Probe:
    """Features (N, D) and a label each; labels that were not trained on count as wrong.

    >>> found = linear_probe([[0.0], [1.0], [0.1], [0.9]], "abab", [[0.2], [0.8]], "ab")
    >>> found.accuracy, found.majority
    (1.0, 0.5)
    """
    train_ND, test_MD = as_finite(train, "train"), as_finite(test, "test")
    for what, rows, labels in (
        ("train", train_ND, train_labels),
        ("test", test_MD, test_labels),
    ):
        if rows.ndim != 2 or len(rows) != len(labels) or not len(rows):
            raise ArgumentError(
                f"{what}: got shape {tuple(rows.shape)} with {len(labels)} labels, expected (N, D) "
                "and N labels, at least one"
            )
    if train_ND.shape[1] != test_MD.shape[1]:
        raise ArgumentError(
            f"test: got {test_MD.shape[1]} features, expected the {train_ND.shape[1]} of train"
        )
    penalty = as_number("penalty", penalty, low=0)
    names = sorted({str(label) for label in train_labels})
    number = {name: place for place, name in enumerate(names)}
    target_N = torch.tensor([number[str(label)] for label in train_labels])
    mean_D, std_D = train_ND.mean(0), train_ND.std(0, correction=0).clamp(min=1e-8)
    x_ND, y_MD = (train_ND - mean_D) / std_D, (test_MD - mean_D) / std_D
    weight_DC = torch.zeros(x_ND.shape[1], len(names), dtype=x_ND.dtype, requires_grad=True)
    bias_C = torch.zeros(len(names), dtype=x_ND.dtype, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight_DC, bias_C],
        max_iter=as_whole("steps", steps, low=1),
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        solver.zero_grad()
        fit = torch.nn.functional.cross_entropy(x_ND @ weight_DC + bias_C, target_N)
        loss = fit + penalty * weight_DC.square().sum() / 2
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
