"""Judges that are language models, and the instructions that they follow."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.lm.budget import Budget as Budget
    from burnish.lm.budget import BudgetSpent as BudgetSpent
    from burnish.lm.budget import forecast as forecast
    from burnish.lm.call_log import CallLog as CallLog
    from burnish.lm.call_log import read_calls as read_calls
    from burnish.rewards.checks.numeric import normalize_numeric_answer as normalize_numeric_answer
    from burnish.rewards.checks.texts import constraint_tools as constraint_tools
    from burnish.rewards.checks.texts import count_occurrences as count_occurrences
    from burnish.rewards.judges.benchmarks import Wins as Wins
    from burnish.rewards.judges.benchmarks import candidate_order as candidate_order
    from burnish.rewards.judges.benchmarks import clamp as clamp
    from burnish.rewards.judges.benchmarks import order_swap_aggregate as order_swap_aggregate
    from burnish.rewards.judges.benchmarks import ranking_score as ranking_score
    from burnish.rewards.judges.benchmarks import reference_match as reference_match
    from burnish.rewards.judges.benchmarks import rmbench_counts as rmbench_counts
    from burnish.rewards.judges.benchmarks import score_from_counts as score_from_counts
    from burnish.rewards.judges.benchmarks import stable_int as stable_int
    from burnish.rewards.judges.benchmarks import ties_score as ties_score
    from burnish.rewards.judges.build import JUDGES as JUDGES
    from burnish.rewards.judges.build import build_judge as build_judge
    from burnish.rewards.judges.instruction import Accuracy as Accuracy
    from burnish.rewards.judges.instruction import Disagreement as Disagreement
    from burnish.rewards.judges.instruction import Edit as Edit
    from burnish.rewards.judges.instruction import Evolution as Evolution
    from burnish.rewards.judges.instruction import Labelled as Labelled
    from burnish.rewards.judges.instruction import accuracy_of as accuracy_of
    from burnish.rewards.judges.instruction import by_rule as by_rule
    from burnish.rewards.judges.instruction import evolve_instruction as evolve_instruction
    from burnish.rewards.judges.judge_model import JudgeModel as JudgeModel
    from burnish.rewards.judges.judge_model import replay as replay
    from burnish.rewards.judges.prompting import Question as Question
    from burnish.rewards.judges.prompting import Reply as Reply
    from burnish.rewards.judges.prompting import Unreadable as Unreadable
    from burnish.rewards.judges.prompting import sanitize_metadata as sanitize_metadata
    from burnish.rewards.judges.reading import parse_pairwise_verdict as parse_pairwise_verdict
    from burnish.rewards.judges.reading import (
        parse_pairwise_verdict_truncated as parse_pairwise_verdict_truncated,
    )
    from burnish.rewards.judges.reading import parse_rating as parse_rating
    from burnish.rewards.judges.simple import DirectPair as DirectPair
    from burnish.rewards.judges.simple import ListRanking as ListRanking
    from burnish.rewards.judges.simple import PointRating as PointRating
    from burnish.rewards.judges.simple import PointRubric as PointRubric

__getattr__, __dir__ = lazy_exports(__name__)
