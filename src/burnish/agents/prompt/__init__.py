"""Prompt optimisation: propose, try, accept by a paired test, confirm on held-out tasks."""

from burnish.agents.prompt.optimise import (
    PromptResult,
    PromptSettings,
    Slices,
    Tried,
    optimise,
)
from burnish.agents.prompt.paired import (
    Paired,
    compare_marks,
    system_prompt,
    with_system_prompt,
)
from burnish.agents.prompt.prompt_report import prompt_diff, prompt_report, verdict_line
from burnish.agents.prompt.proposers import (
    Candidate,
    Case,
    JoinedProposers,
    ModelProposer,
    Proposer,
    Situation,
    WorkedExamples,
)

__all__ = [
    "Candidate",
    "Case",
    "JoinedProposers",
    "ModelProposer",
    "Paired",
    "PromptResult",
    "PromptSettings",
    "Proposer",
    "Situation",
    "Slices",
    "Tried",
    "WorkedExamples",
    "compare_marks",
    "optimise",
    "prompt_diff",
    "prompt_report",
    "system_prompt",
    "verdict_line",
    "with_system_prompt",
]
