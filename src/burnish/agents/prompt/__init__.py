"""Prompt optimisation: propose, try, accept by a paired test, confirm on held-out tasks."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.prompt.prompt_search import (
        Paired as Paired,
        PromptResult as PromptResult,
        PromptSettings as PromptSettings,
        Slices as Slices,
        Tried as Tried,
        compare_marks as compare_marks,
        optimise as optimise,
        prompt_diff as prompt_diff,
        prompt_report as prompt_report,
        system_prompt as system_prompt,
        verdict_line as verdict_line,
        with_system_prompt as with_system_prompt,
    )
    from burnish.agents.prompt.proposers import (
        Candidate as Candidate,
        Case as Case,
        JoinedProposers as JoinedProposers,
        ModelProposer as ModelProposer,
        Proposer as Proposer,
        Situation as Situation,
        WorkedExamples as WorkedExamples,
    )

__getattr__, __dir__ = lazy_exports(__name__)
