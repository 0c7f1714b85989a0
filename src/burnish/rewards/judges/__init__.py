"""Judges that are language models, and the instructions that they follow."""

from burnish.rewards.judges.asking import (
    GREEDY,
    Budget,
    BudgetSpent,
    Heard,
    JudgeModel,
    Question,
    Reader,
    Reply,
    ReplyCache,
    Spent,
    Unreadable,
)
from burnish.rewards.judges.benchmarks import (
    StyleCounts,
    TwoOrders,
    Wins,
    order_swap_aggregate,
    rmbench_counts,
    ties_score,
)
from burnish.rewards.judges.build import JUDGES, build_judge
from burnish.rewards.judges.constraints import (
    constraint_tools,
    count_occurrences,
    normalize_numeric_answer,
)
from burnish.rewards.judges.forecast import Forecast, forecast
from burnish.rewards.judges.instruction import Change, Evolution, evolve_instruction
from burnish.rewards.judges.labelled import (
    Accuracy,
    Disagreement,
    Edit,
    Labelled,
    accuracy_of,
    by_rule,
)
from burnish.rewards.judges.lists import ListRanking
from burnish.rewards.judges.pair import DirectPair
from burnish.rewards.judges.point import PointRating, PointRubric
from burnish.rewards.judges.readouts import (
    candidate_order,
    clamp,
    parse_pairwise_verdict,
    parse_pairwise_verdict_truncated,
    parse_rating,
    ranking_score,
    reference_match,
    score_from_counts,
    stable_int,
)
from burnish.rewards.judges.record import AskedCall, read_record, replay
from burnish.rewards.judges.sanitise import sanitize_metadata

__all__ = [
    "GREEDY",
    "JUDGES",
    "Accuracy",
    "AskedCall",
    "Budget",
    "BudgetSpent",
    "Change",
    "DirectPair",
    "Disagreement",
    "Edit",
    "Evolution",
    "Forecast",
    "Heard",
    "JudgeModel",
    "Labelled",
    "ListRanking",
    "PointRating",
    "PointRubric",
    "Question",
    "Reader",
    "Reply",
    "ReplyCache",
    "Spent",
    "StyleCounts",
    "TwoOrders",
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
    "read_record",
    "reference_match",
    "replay",
    "rmbench_counts",
    "sanitize_metadata",
    "score_from_counts",
    "stable_int",
    "ties_score",
]
