"""Evaluation with intervals and paired tests: of models, of judges, of rewards."""

from burnish.bench.accuracy import (
    Accuracy,
    accuracy,
    agreement,
    by_style,
    by_subset,
    cohen_kappa,
    fleiss_kappa,
    flips,
)
from burnish.bench.comparable import ABSENT, differing
from burnish.bench.compare import (
    Answered,
    Comparison,
    HeldOutRun,
    JudgeComparison,
    Method,
    PairedTest,
    compare,
    compare_judges,
    p_text,
    paired_test,
)
from burnish.bench.detection import Detection, detection
from burnish.bench.edits import CUTS, EDITS, Edit
from burnish.bench.evaluate import Evaluated, Evaluation, evaluate
from burnish.bench.first_wrong import (
    FirstWrong,
    best_threshold,
    calibrated_f1,
    first_flagged,
    first_wrong_f1,
    halves,
    labels_of,
)
from burnish.bench.items import Choice, Item, Judged, choice_of
from burnish.bench.judging import ResultFile, judge_items, read_results
from burnish.bench.preferences import preference_rows
from burnish.bench.probe import ask_edits, ask_twice, edit_findings, pair_findings
from burnish.bench.reward_check import Case, check_reward
from burnish.bench.rubric_transfer import RubricCase, rubric_transfer
from burnish.bench.run_table import RunGroup, RunTable, SeedMean, run_table
from burnish.bench.solutions import solution_rows
from burnish.bench.statistics import (
    Estimate,
    mcnemar,
    mean_estimate,
    paired_difference,
    sign_flip,
    signed_estimate,
    t_estimate,
    wilson,
)

__all__ = [
    "ABSENT",
    "CUTS",
    "EDITS",
    "Accuracy",
    "Answered",
    "Case",
    "Choice",
    "Comparison",
    "Detection",
    "Edit",
    "Estimate",
    "Evaluated",
    "Evaluation",
    "FirstWrong",
    "HeldOutRun",
    "Item",
    "JudgeComparison",
    "Judged",
    "Method",
    "PairedTest",
    "ResultFile",
    "RubricCase",
    "RunGroup",
    "RunTable",
    "SeedMean",
    "accuracy",
    "agreement",
    "ask_edits",
    "ask_twice",
    "best_threshold",
    "by_style",
    "by_subset",
    "calibrated_f1",
    "check_reward",
    "choice_of",
    "cohen_kappa",
    "compare",
    "compare_judges",
    "detection",
    "differing",
    "edit_findings",
    "evaluate",
    "first_flagged",
    "first_wrong_f1",
    "fleiss_kappa",
    "flips",
    "halves",
    "judge_items",
    "labels_of",
    "mcnemar",
    "mean_estimate",
    "p_text",
    "pair_findings",
    "paired_difference",
    "paired_test",
    "preference_rows",
    "read_results",
    "rubric_transfer",
    "run_table",
    "sign_flip",
    "signed_estimate",
    "solution_rows",
    "t_estimate",
    "wilson",
]
