"""Rubrics with tiers and safety constraints: built from consensus, marked by a judge, scored by formula.

scorer = build(JudgeModel(lm), {"truncation": True, "saturation": True})
rewards = await checked(scorer, task, responses)        # the task's field `rubric` holds a rubric
built = await build_rubric("How do I descale the kettle?", roles, retriever=index)
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.rubric.building import (
        Plan as Plan,
        Roles as Roles,
        build_rubric as build_rubric,
    )
    from burnish.rewards.judges.rubric.formula import (
        Interval as Interval,
        MarkedItem as MarkedItem,
        Saturation as Saturation,
        Stabilised as Stabilised,
        Tier as Tier,
        Truncation as Truncation,
        band as band,
        bootstrap_interval as bootstrap_interval,
        concordance as concordance,
        dialogue_score as dialogue_score,
        equal as equal,
        explain as explain,
        family_deltas as family_deltas,
        merge_equal as merge_equal,
        scale_reward as scale_reward,
        score as score,
        without_each as without_each,
    )
    from burnish.rewards.judges.rubric.items import (
        Audit as Audit,
        Candidate as Candidate,
        Point as Point,
        Rubric as Rubric,
        Rules as Rules,
        Source as Source,
        audit_points as audit_points,
        in_consensus as in_consensus,
        joined_audit as joined_audit,
        merge_points as merge_points,
        rule_audit as rule_audit,
    )
    from burnish.rewards.judges.rubric.scorer import (
        RubricScorer as RubricScorer,
        build as build,
        mark_answer as mark_answer,
        read_marks as read_marks,
    )

__getattr__, __dir__ = lazy_exports(__name__)
