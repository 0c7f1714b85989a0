"""Evaluation with intervals and paired tests."""

from burnish.bench.evaluate import Evaluated, Evaluation, evaluate
from burnish.bench.statistics import Estimate, mean_estimate, paired_difference, wilson

__all__ = [
    "Estimate",
    "Evaluated",
    "Evaluation",
    "evaluate",
    "mean_estimate",
    "paired_difference",
    "wilson",
]
