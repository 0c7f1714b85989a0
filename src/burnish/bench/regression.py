"""Logistic regression with standard errors that know which rows belong together; pure Python.

    fit = logistic([[1.0, 0.3], [1.0, -0.2]], [1.0, 0.0], ["pair 1", "pair 1"])
    fit[1].value, fit[1].low, fit[1].high

Targets may be 0, 1 or 0.5 (a tie). A weak normal prior (standard deviation 10) keeps coefficients
finite where the data can be separated. The error of a coefficient is the larger of the model's own
and the cluster-robust one: where rows of a cluster repeat each other the first is too small, where
the data are separated the second is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from burnish.bench.statistics import Z95, Estimate
from burnish.numbers import sigmoid, solve

PRIOR_DEVIATION = 10.0
ROUNDS = 100

Matrix = list[list[float]]

probability = sigmoid
"""The chance that log-odds stand for."""


def logistic(
    rows: Sequence[Sequence[float]], targets: Sequence[float], clusters: Sequence[Hashable]
) -> list[Estimate]:
    """Coefficients with 95 % intervals, in the columns' order; no rows give no coefficients."""
    if not (len(rows) == len(targets) == len(clusters)):
        raise ValueError(
            f"as many rows, targets and clusters; got {len(rows)}, {len(targets)}, {len(clusters)}"
        )
    if not rows:
        return []
    weights = _maximum(rows, targets)
    inverse = _inverse(_information(rows, weights))
    spread = _clustered(rows, targets, clusters, weights, inverse)
    found = []
    for place, value in enumerate(weights):
        error = math.sqrt(max(inverse[place][place], spread[place][place], 0.0))
        found.append(Estimate(value, value - Z95 * error, value + Z95 * error, len(set(clusters))))
    return found


def _maximum(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Newton's method on the penalised likelihood, which is concave; halved where it overshoots."""
    weights = [0.0] * len(rows[0])
    best = _likelihood(rows, targets, weights)
    for _ in range(ROUNDS):
        slope = _slope(rows, targets, weights)
        inverse = _inverse(_information(rows, weights))
        step = [sum(a * b for a, b in zip(line, slope, strict=True)) for line in inverse]
        scale = 1.0
        while scale > 1e-6:
            moved = [w + scale * s for w, s in zip(weights, step, strict=True)]
            value = _likelihood(rows, targets, moved)
            if value >= best:
                break
            scale /= 2
        else:
            return weights
        weights, gain, best = moved, value - best, value
        if gain < 1e-10:
            return weights
    return weights


def _odds(row: Sequence[float], weights: Sequence[float]) -> float:
    return sum(x * w for x, w in zip(row, weights, strict=True))


def _likelihood(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]
) -> float:
    total = -sum(w * w for w in weights) / (2 * PRIOR_DEVIATION**2)
    for row, target in zip(rows, targets, strict=True):
        odds = _odds(row, weights)
        # log(1 + exp(odds)) without overflow.
        total += target * odds - max(odds, 0.0) - math.log1p(math.exp(-abs(odds)))
    return total


def _slope(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]
) -> list[float]:
    slope = [-w / PRIOR_DEVIATION**2 for w in weights]
    for row, target in zip(rows, targets, strict=True):
        residual = target - probability(_odds(row, weights))
        for place, x in enumerate(row):
            slope[place] += residual * x
    return slope


def _information(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> Matrix:
    size = len(weights)
    found = [[0.0] * size for _ in range(size)]
    for row in rows:
        p = probability(_odds(row, weights))
        for i in range(size):
            for j in range(size):
                found[i][j] += p * (1 - p) * row[i] * row[j]
    for i in range(size):
        found[i][i] += 1 / PRIOR_DEVIATION**2
    return found


def _clustered(
    rows: Sequence[Sequence[float]],
    targets: Sequence[float],
    clusters: Sequence[Hashable],
    weights: Sequence[float],
    inverse: Matrix,
) -> Matrix:
    """The sandwich: inverse x (sum of outer products of the clusters' scores) x inverse."""
    size = len(weights)
    scores: dict[Hashable, list[float]] = {}
    for row, target, cluster in zip(rows, targets, clusters, strict=True):
        residual = target - probability(_odds(row, weights))
        score = scores.setdefault(cluster, [0.0] * size)
        for place, x in enumerate(row):
            score[place] += residual * x
    middle = [[sum(s[i] * s[j] for s in scores.values()) for j in range(size)] for i in range(size)]
    count = len(scores)
    few = count / (count - 1) if count > 1 else 1.0
    product = _times(_times(inverse, middle), inverse)
    return [[few * value for value in line] for line in product]


def _times(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum(x * y for x, y in zip(line, column, strict=True)) for column in zip(*b, strict=True)]
        for line in a
    ]


def _inverse(matrix: Matrix) -> Matrix:
    """The prior on the diagonal keeps the matrix regular."""
    size = len(matrix)
    columns = [solve(matrix, [float(i == j) for i in range(size)]) for j in range(size)]
    return [list(line) for line in zip(*columns, strict=True)]
