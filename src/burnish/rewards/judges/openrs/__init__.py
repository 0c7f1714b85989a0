"""OpenRS: written principles, criteria made for each pair, weights applied outside the model.

    scorer = BothOrders(OpenRS(JudgeModel(lm)))
    gated = FirstDecisive(Verifiable([GroundTruth(judge)]), scorer)

Paper: Open Rubric System (arXiv 2602.14069). The card is docs/methods/openrs.md.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.openrs.evolve import Preference as Preference
    from burnish.rewards.judges.openrs.evolve import RubricEvolution as RubricEvolution
    from burnish.rewards.judges.openrs.evolve import Search as Search
    from burnish.rewards.judges.openrs.evolve import apply_review as apply_review
    from burnish.rewards.judges.openrs.evolve import asymmetric_advantages as asymmetric_advantages
    from burnish.rewards.judges.openrs.evolve import evolve_rubric as evolve_rubric
    from burnish.rewards.judges.openrs.evolve import judge_of as judge_of
    from burnish.rewards.judges.openrs.evolve import random_edits as random_edits
    from burnish.rewards.judges.openrs.evolve import read_review as read_review
    from burnish.rewards.judges.openrs.evolve import refiner as refiner
    from burnish.rewards.judges.openrs.evolve import write_review as write_review
    from burnish.rewards.judges.openrs.gate import Constraints as Constraints
    from burnish.rewards.judges.openrs.gate import GroundTruth as GroundTruth
    from burnish.rewards.judges.openrs.gate import LanguageMatch as LanguageMatch
    from burnish.rewards.judges.openrs.gate import Verifiable as Verifiable
    from burnish.rewards.judges.openrs.gate import anchored as anchored
    from burnish.rewards.judges.openrs.gate import one_vs_n as one_vs_n
    from burnish.rewards.judges.openrs.gate import two_order_strict as two_order_strict
    from burnish.rewards.judges.openrs.gate import two_order_verdict as two_order_verdict
    from burnish.rewards.judges.openrs.gate import two_order_votes as two_order_votes
    from burnish.rewards.judges.openrs.gate import verifiable_verdict as verifiable_verdict
    from burnish.rewards.judges.openrs.judge import OpenRS as OpenRS
    from burnish.rewards.judges.openrs.judge import Rules as Rules
    from burnish.rewards.judges.openrs.judge import build as build
    from burnish.rewards.judges.openrs.judge import criteria_of as criteria_of
    from burnish.rewards.judges.openrs.judge import reaggregate as reaggregate
    from burnish.rewards.judges.openrs.meta_rubric import Change as Change
    from burnish.rewards.judges.openrs.meta_rubric import Item as Item
    from burnish.rewards.judges.openrs.meta_rubric import MetaRubric as MetaRubric
    from burnish.rewards.judges.openrs.meta_rubric import RubricLibrary as RubricLibrary
    from burnish.rewards.judges.openrs.meta_rubric import aggregate_criteria as aggregate_criteria
    from burnish.rewards.judges.openrs.meta_rubric import explain_criteria as explain_criteria
    from burnish.rewards.judges.reading import extract_json as extract_json

__getattr__, __dir__ = lazy_exports(__name__)
