"""EVPV: steps of a solution, gated by whether the premises they rest on are really there.

claims, visual_steps = build_checklist(steps)
gate([1, 1, -1], visual_steps, reliability=0.5)
FactIndex(["AB = 10"]).match("BA = 12").outcome          # contradicted
"""

from burnish.rewards.judges.evpv.extracting import EXTRACTORS, Extraction, extract_all
from burnish.rewards.judges.evpv.facts import Fact, Statement, read_fact, read_statement
from burnish.rewards.judges.evpv.judge import EvpvConfig, EvpvJudge, EvpvOptions, build
from burnish.rewards.judges.evpv.matching import (
    EmbeddingMatcher,
    FactIndex,
    Matched,
    Outcome,
    response_reliability,
)
from burnish.rewards.judges.evpv.metrics import (
    BestOfK,
    PremiseCounts,
    best_of_k,
    corrupt_drop,
    corrupt_flip,
    macro_f1,
    premise_counts,
)
from burnish.rewards.judges.evpv.scores import (
    Checklist,
    aggregate_steps,
    build_checklist,
    correctness_rate,
    first_error,
    gate,
    geometric_mean,
    parse_step_verdict,
    parse_step_verdict_strict,
    reliability_from_audit,
    streak,
    weighted_correctness,
)

__all__ = [
    "EXTRACTORS",
    "BestOfK",
    "Checklist",
    "EmbeddingMatcher",
    "EvpvConfig",
    "EvpvJudge",
    "EvpvOptions",
    "Extraction",
    "Fact",
    "FactIndex",
    "Matched",
    "Outcome",
    "PremiseCounts",
    "Statement",
    "aggregate_steps",
    "best_of_k",
    "build",
    "build_checklist",
    "correctness_rate",
    "corrupt_drop",
    "corrupt_flip",
    "extract_all",
    "first_error",
    "gate",
    "geometric_mean",
    "macro_f1",
    "parse_step_verdict",
    "parse_step_verdict_strict",
    "premise_counts",
    "read_fact",
    "read_statement",
    "reliability_from_audit",
    "response_reliability",
    "streak",
    "weighted_correctness",
]
