"""Evaluation with intervals and paired tests."""

from burnish.bench.comparable import ABSENT, differing
from burnish.bench.compare import (
    Answered,
    Comparison,
    HeldOutRun,
    Method,
    PairedTest,
    compare,
    p_text,
    paired_test,
)
from burnish.bench.evaluate import Evaluated, Evaluation, evaluate
from burnish.bench.statistics import (
    Estimate,
    mcnemar,
    mean_estimate,
    paired_difference,
    sign_flip,
    wilson,
)

__all__ = [
    "ABSENT",
    "Answered",
    "Comparison",
    "Estimate",
    "Evaluated",
    "Evaluation",
    "HeldOutRun",
    "Method",
    "PairedTest",
    "compare",
    "differing",
    "evaluate",
    "mcnemar",
    "mean_estimate",
    "p_text",
    "paired_difference",
    "paired_test",
    "sign_flip",
    "wilson",
]
