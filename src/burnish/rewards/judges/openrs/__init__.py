"""OpenRS: written principles, criteria made for each pair, weights applied outside the model.

    scorer = BothOrders(OpenRS(JudgeModel(lm)))
    gated = FirstDecisive(Verifiable([GroundTruth(judge)]), scorer)

Paper: Open Rubric System (arXiv 2602.14069). The card is docs/methods/openrs.md.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.openrs.evolve import (
        Preference as Preference,
        RubricEvolution as RubricEvolution,
        Search as Search,
        apply_review as apply_review,
        asymmetric_advantages as asymmetric_advantages,
        evolve_rubric as evolve_rubric,
        judge_of as judge_of,
        random_edits as random_edits,
        read_review as read_review,
        refiner as refiner,
        write_review as write_review,
    )
    from burnish.rewards.judges.openrs.gate import (
        Constraints as Constraints,
        GroundTruth as GroundTruth,
        LanguageMatch as LanguageMatch,
        Verifiable as Verifiable,
        anchored as anchored,
        one_vs_n as one_vs_n,
        two_order_strict as two_order_strict,
        two_order_verdict as two_order_verdict,
        two_order_votes as two_order_votes,
        verifiable_verdict as verifiable_verdict,
    )
    from burnish.rewards.judges.openrs.judge import (
        OpenRS as OpenRS,
        Rules as Rules,
        build as build,
        criteria_of as criteria_of,
        reaggregate as reaggregate,
    )
    from burnish.rewards.judges.openrs.meta_rubric import (
        Change as Change,
        Item as Item,
        MetaRubric as MetaRubric,
        RubricLibrary as RubricLibrary,
        aggregate_criteria as aggregate_criteria,
        explain_criteria as explain_criteria,
    )
    from burnish.rewards.judges.reading import extract_json as extract_json

__getattr__, __dir__ = lazy_exports(__name__)
