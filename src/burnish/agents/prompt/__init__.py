"""Prompt optimisation: propose, try, accept by a paired test, confirm on held-out tasks."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.prompt.prompt_search import Paired as Paired
    from burnish.agents.prompt.prompt_search import PromptResult as PromptResult
    from burnish.agents.prompt.prompt_search import PromptSettings as PromptSettings
    from burnish.agents.prompt.prompt_search import Slices as Slices
    from burnish.agents.prompt.prompt_search import Tried as Tried
    from burnish.agents.prompt.prompt_search import compare_marks as compare_marks
    from burnish.agents.prompt.prompt_search import optimise as optimise
    from burnish.agents.prompt.prompt_search import prompt_diff as prompt_diff
    from burnish.agents.prompt.prompt_search import prompt_report as prompt_report
    from burnish.agents.prompt.prompt_search import system_prompt as system_prompt
    from burnish.agents.prompt.prompt_search import verdict_line as verdict_line
    from burnish.agents.prompt.prompt_search import with_system_prompt as with_system_prompt
    from burnish.agents.prompt.proposers import Candidate as Candidate
    from burnish.agents.prompt.proposers import Case as Case
    from burnish.agents.prompt.proposers import JoinedProposers as JoinedProposers
    from burnish.agents.prompt.proposers import ModelProposer as ModelProposer
    from burnish.agents.prompt.proposers import Proposer as Proposer
    from burnish.agents.prompt.proposers import Situation as Situation
    from burnish.agents.prompt.proposers import WorkedExamples as WorkedExamples

__getattr__, __dir__ = lazy_exports(__name__)
