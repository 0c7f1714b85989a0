"""OpenRS: written principles, criteria made for each pair, weights applied outside the model.

    scorer = BothOrders(OpenRS(JudgeModel(lm)))
    gated = FirstDecisive(Verifiable([GroundTruth(judge)]), scorer)

Paper: Open Rubric System (arXiv 2602.14069). The card is docs/methods/openrs.md.
"""

from burnish.rewards.judges.openrs.aggregate import aggregate_criteria, explain_criteria
from burnish.rewards.judges.openrs.edits import Preference, judge_of, random_edits, refiner
from burnish.rewards.judges.openrs.evolve import (
    RubricEvolution,
    Search,
    asymmetric_advantages,
    evolve_rubric,
)
from burnish.rewards.judges.openrs.gate import (
    Constraints,
    GroundTruth,
    LanguageMatch,
    Verifiable,
    anchored,
    one_vs_n,
    two_order_strict,
    two_order_verdict,
    two_order_votes,
    verifiable_verdict,
)
from burnish.rewards.judges.openrs.judge import OpenRS, Rules, build, criteria_of, reaggregate
from burnish.rewards.judges.openrs.meta_rubric import Change, Item, MetaRubric, RubricLibrary
from burnish.rewards.judges.openrs.review import apply_review, read_review, write_review
from burnish.rewards.judges.reading import extract_json

__all__ = [
    "Change",
    "Constraints",
    "GroundTruth",
    "Item",
    "LanguageMatch",
    "MetaRubric",
    "OpenRS",
    "Preference",
    "RubricEvolution",
    "RubricLibrary",
    "Rules",
    "Search",
    "Verifiable",
    "aggregate_criteria",
    "anchored",
    "apply_review",
    "asymmetric_advantages",
    "build",
    "criteria_of",
    "evolve_rubric",
    "explain_criteria",
    "extract_json",
    "judge_of",
    "one_vs_n",
    "random_edits",
    "read_review",
    "reaggregate",
    "refiner",
    "two_order_strict",
    "two_order_verdict",
    "two_order_votes",
    "verifiable_verdict",
    "write_review",
]
