"""Judges that are language models, and the instructions that they follow."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.lm.budget import Budget as Budget, BudgetSpent as BudgetSpent, forecast as forecast
    from burnish.lm.call_log import CallLog as CallLog, read_calls as read_calls
    from burnish.rewards.checks.numeric import normalize_numeric_answer as normalize_numeric_answer
    from burnish.rewards.checks.texts import (
        constraint_tools as constraint_tools,
        count_occurrences as count_occurrences,
    )
    from burnish.rewards.judges.benchmarks import (
        Wins as Wins,
        candidate_order as candidate_order,
        clamp as clamp,
        order_swap_aggregate as order_swap_aggregate,
        ranking_score as ranking_score,
        reference_match as reference_match,
        rmbench_counts as rmbench_counts,
        score_from_counts as score_from_counts,
        stable_int as stable_int,
        ties_score as ties_score,
    )
    from burnish.rewards.judges.build import JUDGES as JUDGES, build_judge as build_judge
    from burnish.rewards.judges.instruction import (
        Accuracy as Accuracy,
        Disagreement as Disagreement,
        Edit as Edit,
        Evolution as Evolution,
        Labelled as Labelled,
        accuracy_of as accuracy_of,
        by_rule as by_rule,
        evolve_instruction as evolve_instruction,
    )
    from burnish.rewards.judges.judge_model import JudgeModel as JudgeModel, replay as replay
    from burnish.rewards.judges.prompting import (
        Question as Question,
        Reply as Reply,
        Unreadable as Unreadable,
        sanitize_metadata as sanitize_metadata,
    )
    from burnish.rewards.judges.reading import (
        parse_pairwise_verdict as parse_pairwise_verdict,
        parse_pairwise_verdict_truncated as parse_pairwise_verdict_truncated,
        parse_rating as parse_rating,
    )
    from burnish.rewards.judges.simple import (
        DirectPair as DirectPair,
        ListRanking as ListRanking,
        PointRating as PointRating,
        PointRubric as PointRubric,
    )

__getattr__, __dir__ = lazy_exports(__name__)
