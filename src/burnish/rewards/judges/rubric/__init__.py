"""Rubrics with tiers and safety constraints: built from consensus, marked by a judge, scored by formula.

scorer = build(JudgeModel(lm), {"truncation": True, "saturation": True})
rewards = await checked(scorer, task, responses)        # the task's field `rubric` holds a rubric
built = await build_rubric("How do I descale the kettle?", roles, retriever=index)
"""

from burnish.rewards.judges.rubric.audit import Audit, audit_points, joined_audit, rule_audit
from burnish.rewards.judges.rubric.building import Plan, Roles, build_rubric
from burnish.rewards.judges.rubric.items import (
    Point,
    PointsItem,
    Rubric,
    Rules,
    Source,
    points_items,
    points_score,
    tiered,
)
from burnish.rewards.judges.rubric.points import Candidate, in_consensus, merge_points
from burnish.rewards.judges.rubric.score import (
    MarkedItem,
    Saturation,
    Tier,
    Truncation,
    dialogue_score,
    explain,
    score,
    without_each,
)
from burnish.rewards.judges.rubric.scorer import RubricScorer, build, mark_answer, read_marks
from burnish.rewards.judges.rubric.stability import (
    Interval,
    Stabilised,
    band,
    bootstrap_interval,
    concordance,
    equal,
    family_deltas,
    merge_equal,
    scale_reward,
)

__all__ = [
    "Audit",
    "Candidate",
    "Interval",
    "MarkedItem",
    "Plan",
    "Point",
    "PointsItem",
    "Roles",
    "Rubric",
    "RubricScorer",
    "Rules",
    "Saturation",
    "Source",
    "Stabilised",
    "Tier",
    "Truncation",
    "audit_points",
    "band",
    "bootstrap_interval",
    "build",
    "build_rubric",
    "concordance",
    "dialogue_score",
    "equal",
    "explain",
    "family_deltas",
    "in_consensus",
    "joined_audit",
    "mark_answer",
    "merge_equal",
    "merge_points",
    "points_items",
    "points_score",
    "read_marks",
    "rule_audit",
    "scale_reward",
    "score",
    "tiered",
    "without_each",
]
