"""OpenRS: written principles, criteria made for each pair, weights applied outside the model.

    scorer = BothOrders(OpenRS(JudgeModel(lm)))
    gated = FirstDecisive(Verifiable([GroundTruth(judge)]), scorer)

Paper: Open Rubric System (arXiv 2602.14069). The card is docs/methods/openrs.md.
"""

from burnish.rewards.judges.openrs.aggregate import (
    Aggregate,
    aggregate_criteria,
    explain_criteria,
)
from burnish.rewards.judges.openrs.build import build
from burnish.rewards.judges.openrs.evolve import (
    RubricEvolution,
    Search,
    asymmetric_advantages,
    evolve_rubric,
)
from burnish.rewards.judges.openrs.extract import extract_json
from burnish.rewards.judges.openrs.gate import Verifiable, anchored
from burnish.rewards.judges.openrs.judge import OpenRS, Rules, criteria_of
from burnish.rewards.judges.openrs.library import RubricLibrary
from burnish.rewards.judges.openrs.meta_rubric import Change, Item, MetaRubric
from burnish.rewards.judges.openrs.outcomes import (
    one_vs_n,
    two_order_strict,
    two_order_verdict,
    two_order_votes,
    verifiable_verdict,
)
from burnish.rewards.judges.openrs.propose import Preference, judge_of, random_edits, refiner
from burnish.rewards.judges.openrs.replay import reaggregate
from burnish.rewards.judges.openrs.review import (
    Review,
    ReviewOutcome,
    apply_review,
    read_review,
    write_review,
)
from burnish.rewards.judges.openrs.verifiable import (
    Constraints,
    GroundTruth,
    LanguageMatch,
    LanguageMatchConfig,
)

__all__ = [
    "Aggregate",
    "Change",
    "Constraints",
    "GroundTruth",
    "Item",
    "LanguageMatch",
    "LanguageMatchConfig",
    "MetaRubric",
    "OpenRS",
    "Preference",
    "Review",
    "ReviewOutcome",
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
