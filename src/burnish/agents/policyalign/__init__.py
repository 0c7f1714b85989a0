"""PolicyAlign (arXiv 2606.25442): move a written policy into a model's weights.

    policy text -> clauses -> requests -> those that the policy changes most -> distillation -> report

The maths is in `burnish.policy.distillation`, the training is `train.kind = "distil"` with
`train.policies`; here are the steps around it. `burnish.align` and `burnish align` go the whole way.
"""

from burnish.agents.policyalign.guards import (
    EndpointGuard,
    Guard,
    GuardVerdict,
    RuleGuard,
    read_guard,
)
from burnish.agents.policyalign.instructions import (
    Clause,
    Instruction,
    clauses_of,
    different,
    load_instructions,
    read_requests,
    synthesise,
)
from burnish.agents.policyalign.report import (
    AlignmentReport,
    Judged,
    Prompt,
    judge_answers,
    load_prompts,
    make_report,
    text_losses,
)
from burnish.agents.policyalign.sensitivity import (
    SCORES,
    Contexts,
    Scored,
    check_changes,
    keep_sensitive,
    open_score,
)
from burnish.policy.distillation import aggregate, ema, policy_sensitivity, token_reverse_kl
from burnish.training.policy_text import PolicyText, parse_policy, read_policy

__all__ = [
    "SCORES",
    "AlignmentReport",
    "Clause",
    "Contexts",
    "EndpointGuard",
    "Guard",
    "GuardVerdict",
    "Instruction",
    "Judged",
    "PolicyText",
    "Prompt",
    "RuleGuard",
    "Scored",
    "aggregate",
    "check_changes",
    "clauses_of",
    "different",
    "ema",
    "judge_answers",
    "keep_sensitive",
    "load_instructions",
    "load_prompts",
    "make_report",
    "open_score",
    "parse_policy",
    "policy_sensitivity",
    "read_guard",
    "read_policy",
    "read_requests",
    "synthesise",
    "text_losses",
    "token_reverse_kl",
]
