"""EVPV: steps of a solution, gated by whether the premises they rest on are really there.

claims, visual_steps = build_checklist(steps)
gate([1, 1, -1], visual_steps, reliability=0.5)
FactIndex(["AB = 10"]).match("BA = 12").outcome          # contradicted
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.evpv.evidence import EXTRACTORS as EXTRACTORS
    from burnish.rewards.judges.evpv.evidence import Extraction as Extraction
    from burnish.rewards.judges.evpv.evidence import extract_all as extract_all
    from burnish.rewards.judges.evpv.facts import Fact as Fact
    from burnish.rewards.judges.evpv.facts import Statement as Statement
    from burnish.rewards.judges.evpv.facts import read_fact as read_fact
    from burnish.rewards.judges.evpv.facts import read_statement as read_statement
    from burnish.rewards.judges.evpv.judge import EvpvConfig as EvpvConfig
    from burnish.rewards.judges.evpv.judge import EvpvJudge as EvpvJudge
    from burnish.rewards.judges.evpv.judge import EvpvOptions as EvpvOptions
    from burnish.rewards.judges.evpv.judge import build as build
    from burnish.rewards.judges.evpv.matching import EmbeddingMatcher as EmbeddingMatcher
    from burnish.rewards.judges.evpv.matching import FactIndex as FactIndex
    from burnish.rewards.judges.evpv.matching import Matched as Matched
    from burnish.rewards.judges.evpv.matching import Outcome as Outcome
    from burnish.rewards.judges.evpv.matching import response_reliability as response_reliability
    from burnish.rewards.judges.evpv.metrics import BestOfK as BestOfK
    from burnish.rewards.judges.evpv.metrics import PremiseCounts as PremiseCounts
    from burnish.rewards.judges.evpv.metrics import best_of_k as best_of_k
    from burnish.rewards.judges.evpv.metrics import corrupt_drop as corrupt_drop
    from burnish.rewards.judges.evpv.metrics import corrupt_flip as corrupt_flip
    from burnish.rewards.judges.evpv.metrics import macro_f1 as macro_f1
    from burnish.rewards.judges.evpv.metrics import premise_counts as premise_counts
    from burnish.rewards.judges.evpv.scores import Checklist as Checklist
    from burnish.rewards.judges.evpv.scores import aggregate_steps as aggregate_steps
    from burnish.rewards.judges.evpv.scores import build_checklist as build_checklist
    from burnish.rewards.judges.evpv.scores import correctness_rate as correctness_rate
    from burnish.rewards.judges.evpv.scores import first_error as first_error
    from burnish.rewards.judges.evpv.scores import gate as gate
    from burnish.rewards.judges.evpv.scores import geometric_mean as geometric_mean
    from burnish.rewards.judges.evpv.scores import parse_step_verdict as parse_step_verdict
    from burnish.rewards.judges.evpv.scores import (
        parse_step_verdict_strict as parse_step_verdict_strict,
    )
    from burnish.rewards.judges.evpv.scores import reliability_from_audit as reliability_from_audit
    from burnish.rewards.judges.evpv.scores import streak as streak
    from burnish.rewards.judges.evpv.scores import weighted_correctness as weighted_correctness

__getattr__, __dir__ = lazy_exports(__name__)
