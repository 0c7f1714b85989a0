"""Judges that are language models, and the instructions that they follow."""

from burnish.lm.budget import Budget, BudgetSpent, forecast
from burnish.lm.call_log import CallLog, read_calls
from burnish.rewards.checks.numeric import normalize_numeric_answer
from burnish.rewards.checks.texts import constraint_tools, count_occurrences
from burnish.rewards.judges.benchmarks import (
    Wins,
    candidate_order,
    clamp,
    order_swap_aggregate,
    ranking_score,
    reference_match,
    rmbench_counts,
    score_from_counts,
    stable_int,
    ties_score,
)
from burnish.rewards.judges.build import JUDGES, build_judge
from burnish.rewards.judges.direct import DirectPair
from burnish.rewards.judges.free_forms import (
    parse_pairwise_verdict,
    parse_pairwise_verdict_truncated,
    parse_rating,
)
from burnish.rewards.judges.instruction import (
    Accuracy,
    Disagreement,
    Edit,
    Evolution,
    Labelled,
    accuracy_of,
    by_rule,
    evolve_instruction,
)
from burnish.rewards.judges.judge_model import JudgeModel, replay
from burnish.rewards.judges.lists import ListRanking
from burnish.rewards.judges.point import PointRating, PointRubric
from burnish.rewards.judges.prompting import Question, Reply, Unreadable
from burnish.rewards.judges.sanitise import sanitize_metadata

__all__ = [
    "JUDGES",
    "Accuracy",
    "Budget",
    "BudgetSpent",
    "CallLog",
    "DirectPair",
    "Disagreement",
    "Edit",
    "Evolution",
    "JudgeModel",
    "Labelled",
    "ListRanking",
    "PointRating",
    "PointRubric",
    "Question",
    "Reply",
    "Unreadable",
    "Wins",
    "accuracy_of",
    "build_judge",
    "by_rule",
    "candidate_order",
    "clamp",
    "constraint_tools",
    "count_occurrences",
    "evolve_instruction",
    "forecast",
    "normalize_numeric_answer",
    "order_swap_aggregate",
    "parse_pairwise_verdict",
    "parse_pairwise_verdict_truncated",
    "parse_rating",
    "ranking_score",
    "read_calls",
    "reference_match",
    "replay",
    "rmbench_counts",
    "sanitize_metadata",
    "score_from_counts",
    "stable_int",
    "ties_score",
]
