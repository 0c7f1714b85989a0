"""PolicyAlign (arXiv 2606.25442): move a written policy into a model's weights.

    policy text -> clauses -> requests -> those that the policy changes most -> distillation -> report

The maths is in `burnish.policy.distillation`, the training is `train.kind = "distil"` with
`train.policies`; here are the steps around it. `burnish.align` and `burnish align` go the whole way.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.policyalign.guards import (
        EndpointGuard as EndpointGuard,
        Guard as Guard,
        GuardVerdict as GuardVerdict,
        RuleGuard as RuleGuard,
        read_guard as read_guard,
    )
    from burnish.agents.policyalign.instructions import (
        Clause as Clause,
        Instruction as Instruction,
        clauses_of as clauses_of,
        different as different,
        load_instructions as load_instructions,
        read_requests as read_requests,
        synthesise as synthesise,
    )
    from burnish.agents.policyalign.report import (
        AlignmentReport as AlignmentReport,
        Judged as Judged,
        Prompt as Prompt,
        judge_answers as judge_answers,
        load_prompts as load_prompts,
        make_report as make_report,
        text_losses as text_losses,
    )
    from burnish.agents.policyalign.sensitivity import (
        SCORES as SCORES,
        Contexts as Contexts,
        Scored as Scored,
        check_changes as check_changes,
        keep_sensitive as keep_sensitive,
        open_score as open_score,
    )
    from burnish.policy.distillation import (
        aggregate as aggregate,
        ema as ema,
        policy_sensitivity as policy_sensitivity,
        token_reverse_kl as token_reverse_kl,
    )
    from burnish.training.policy_text import (
        PolicyText as PolicyText,
        parse_policy as parse_policy,
        read_policy as read_policy,
    )

__getattr__, __dir__ = lazy_exports(__name__)
