"""PolicyAlign (arXiv 2606.25442): move a written policy into a model's weights.

    policy text -> clauses -> requests -> those that the policy changes most -> distillation -> report

The maths is in `burnish.policy.distillation`, the training is `train.kind = "distil"` with
`train.policies`; here are the steps around it. `burnish.align` and `burnish align` go the whole way.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.policyalign.guards import EndpointGuard as EndpointGuard
    from burnish.agents.policyalign.guards import Guard as Guard
    from burnish.agents.policyalign.guards import GuardVerdict as GuardVerdict
    from burnish.agents.policyalign.guards import RuleGuard as RuleGuard
    from burnish.agents.policyalign.guards import read_guard as read_guard
    from burnish.agents.policyalign.instructions import Clause as Clause
    from burnish.agents.policyalign.instructions import Instruction as Instruction
    from burnish.agents.policyalign.instructions import clauses_of as clauses_of
    from burnish.agents.policyalign.instructions import different as different
    from burnish.agents.policyalign.instructions import load_instructions as load_instructions
    from burnish.agents.policyalign.instructions import read_requests as read_requests
    from burnish.agents.policyalign.instructions import synthesise as synthesise
    from burnish.agents.policyalign.report import AlignmentReport as AlignmentReport
    from burnish.agents.policyalign.report import Judged as Judged
    from burnish.agents.policyalign.report import Prompt as Prompt
    from burnish.agents.policyalign.report import judge_answers as judge_answers
    from burnish.agents.policyalign.report import load_prompts as load_prompts
    from burnish.agents.policyalign.report import make_report as make_report
    from burnish.agents.policyalign.report import text_losses as text_losses
    from burnish.agents.policyalign.sensitivity import SCORES as SCORES
    from burnish.agents.policyalign.sensitivity import Contexts as Contexts
    from burnish.agents.policyalign.sensitivity import Scored as Scored
    from burnish.agents.policyalign.sensitivity import check_changes as check_changes
    from burnish.agents.policyalign.sensitivity import keep_sensitive as keep_sensitive
    from burnish.agents.policyalign.sensitivity import open_score as open_score
    from burnish.policy.distillation import aggregate as aggregate
    from burnish.policy.distillation import ema as ema
    from burnish.policy.distillation import policy_sensitivity as policy_sensitivity
    from burnish.policy.distillation import token_reverse_kl as token_reverse_kl
    from burnish.training.policy_text import PolicyText as PolicyText
    from burnish.training.policy_text import parse_policy as parse_policy
    from burnish.training.policy_text import read_policy as read_policy

__getattr__, __dir__ = lazy_exports(__name__)
