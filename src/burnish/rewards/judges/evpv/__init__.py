"""EVPV: steps of a solution, gated by whether the premises they rest on are really there.

claims, visual_steps = build_checklist(steps)
gate([1, 1, -1], visual_steps, reliability=0.5)
FactIndex(["AB = 10"]).match("BA = 12").outcome          # contradicted
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.evpv.evidence import (
        EXTRACTORS as EXTRACTORS,
        Extraction as Extraction,
        extract_all as extract_all,
    )
    from burnish.rewards.judges.evpv.facts import (
        Fact as Fact,
        Statement as Statement,
        read_fact as read_fact,
        read_statement as read_statement,
    )
    from burnish.rewards.judges.evpv.judge import (
        EvpvConfig as EvpvConfig,
        EvpvJudge as EvpvJudge,
        EvpvOptions as EvpvOptions,
        build as build,
    )
    from burnish.rewards.judges.evpv.matching import (
        EmbeddingMatcher as EmbeddingMatcher,
        FactIndex as FactIndex,
        Matched as Matched,
        Outcome as Outcome,
        response_reliability as response_reliability,
    )
    from burnish.rewards.judges.evpv.metrics import (
        BestOfK as BestOfK,
        PremiseCounts as PremiseCounts,
        best_of_k as best_of_k,
        corrupt_drop as corrupt_drop,
        corrupt_flip as corrupt_flip,
        macro_f1 as macro_f1,
        premise_counts as premise_counts,
    )
    from burnish.rewards.judges.evpv.scores import (
        Checklist as Checklist,
        aggregate_steps as aggregate_steps,
        build_checklist as build_checklist,
        correctness_rate as correctness_rate,
        first_error as first_error,
        gate as gate,
        geometric_mean as geometric_mean,
        parse_step_verdict as parse_step_verdict,
        parse_step_verdict_strict as parse_step_verdict_strict,
        reliability_from_audit as reliability_from_audit,
        streak as streak,
        weighted_correctness as weighted_correctness,
    )

__getattr__, __dir__ = lazy_exports(__name__)
