"""Rubrics with tiers and safety constraints: built from consensus, marked by a judge, scored by formula.

scorer = build(JudgeModel(lm), {"truncation": True, "saturation": True})
rewards = await checked(scorer, task, responses)        # the task's field `rubric` holds a rubric
built = await build_rubric("How do I descale the kettle?", roles, retriever=index)
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.rubric.building import Plan as Plan
    from burnish.rewards.judges.rubric.building import Roles as Roles
    from burnish.rewards.judges.rubric.building import build_rubric as build_rubric
    from burnish.rewards.judges.rubric.formula import Interval as Interval
    from burnish.rewards.judges.rubric.formula import MarkedItem as MarkedItem
    from burnish.rewards.judges.rubric.formula import Saturation as Saturation
    from burnish.rewards.judges.rubric.formula import Stabilised as Stabilised
    from burnish.rewards.judges.rubric.formula import Tier as Tier
    from burnish.rewards.judges.rubric.formula import Truncation as Truncation
    from burnish.rewards.judges.rubric.formula import band as band
    from burnish.rewards.judges.rubric.formula import bootstrap_interval as bootstrap_interval
    from burnish.rewards.judges.rubric.formula import concordance as concordance
    from burnish.rewards.judges.rubric.formula import dialogue_score as dialogue_score
    from burnish.rewards.judges.rubric.formula import equal as equal
    from burnish.rewards.judges.rubric.formula import explain as explain
    from burnish.rewards.judges.rubric.formula import family_deltas as family_deltas
    from burnish.rewards.judges.rubric.formula import merge_equal as merge_equal
    from burnish.rewards.judges.rubric.formula import scale_reward as scale_reward
    from burnish.rewards.judges.rubric.formula import score as score
    from burnish.rewards.judges.rubric.formula import without_each as without_each
    from burnish.rewards.judges.rubric.items import Audit as Audit
    from burnish.rewards.judges.rubric.items import Candidate as Candidate
    from burnish.rewards.judges.rubric.items import Point as Point
    from burnish.rewards.judges.rubric.items import Rubric as Rubric
    from burnish.rewards.judges.rubric.items import Rules as Rules
    from burnish.rewards.judges.rubric.items import Source as Source
    from burnish.rewards.judges.rubric.items import audit_points as audit_points
    from burnish.rewards.judges.rubric.items import in_consensus as in_consensus
    from burnish.rewards.judges.rubric.items import joined_audit as joined_audit
    from burnish.rewards.judges.rubric.items import merge_points as merge_points
    from burnish.rewards.judges.rubric.items import rule_audit as rule_audit
    from burnish.rewards.judges.rubric.scorer import RubricScorer as RubricScorer
    from burnish.rewards.judges.rubric.scorer import build as build
    from burnish.rewards.judges.rubric.scorer import mark_answer as mark_answer
    from burnish.rewards.judges.rubric.scorer import read_marks as read_marks

__getattr__, __dir__ = lazy_exports(__name__)
