"""The words that a judge reads, from files, with all blanks filled in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from burnish.rewards.judges import prompting
from burnish.rewards.judges.skill_rm.cases import Case
from burnish.rewards.judges.skill_rm.entries import CAPS
from burnish.rewards.judges.skill_rm.package import SkillPackage
from burnish.rewards.judges.skill_rm.tools import Limits, ToolUse, cut

TOOL_LINES = {
    "use_skill": 'use_skill {"name": "..."}: opens a skill: how to judge, and an index of resources',
    "list_resources": "list_resources {}: the index again",
    "view_resource": 'view_resource {"id": "...", "reason": "..."}: the text of a resource',
    "run_resource": 'run_resource {"id": "...", "reason": "..."}: runs a verifier on this case',
    "python_sandbox": 'python_sandbox {"code": "...", "reason": "..."}: runs Python; `prompt` and '
    "`responses` (by label) are there, also words(), sentences(), paragraphs(), lines(), bullets(), "
    "headings(), count_occurrences(text, needle), constraint_tools(text); print what you want to see",
    "final_answer": "final_answer {...}: your judgement, see below",
}


PROMPTS = Path(__file__).parent / "prompts"


def wording(name: str) -> str:
    """A prompt file of this method."""
    return prompting.wording(name, PROMPTS)


@cache
def all_wording() -> str:
    """Every prompt file and tool line: what a judge's identity depends on."""
    files = sorted(PROMPTS.glob("*.txt"))
    return "\0".join([*(file.read_text(encoding="utf-8") for file in files), repr(TOOL_LINES)])


def filled(name: str, values: Mapping[str, str]) -> str:
    """A prompt with its blanks filled in one pass: a text that holds a blank stays as it is."""
    return prompting.fill(wording(name), values)


def contract(case: Case) -> str:
    """How a final answer looks."""
    if case.is_pair:
        return wording("contract_pair").strip()
    return filled("contract_point", {"flags": ", ".join(CAPS)}).strip()


def first_message(
    case: Case, skills: Sequence[SkillPackage], tools: Sequence[str], limits: Limits
) -> str:
    """The opening: tools, skills by name and description, the case."""
    names = [f"- {skill.name}: {' '.join(skill.description.split())}" for skill in skills]
    listed = "Skills that you can open:\n" + "\n".join(names) + "\n\n" if names else ""
    return filled(
        "start",
        {
            "what": _what(case),
            "tools": "\n".join(f"- {TOOL_LINES[tool]}" for tool in tools),
            "skills": listed,
            "steps": str(limits.steps),
            "contract": contract(case),
            **_material(case),
        },
    )


def flat_message(case: Case, resources: str, sample_chars: int) -> str:
    """Everything at once: the ablation without an agent."""
    values = {"what": _what(case), "resources": resources, "contract": contract(case)}
    return filled("flat", values | _material(case, sample_chars))


def result_message(case: Case, used: ToolUse, tools: Sequence[str], limits: Limits) -> str:
    """What a tool gave back."""
    text = "\n".join(part for part in (used.output, used.error and f"error: {used.error}") if part)
    return filled(
        "result",
        {
            "tool": used.tool,
            "step": str(used.step),
            "steps": str(limits.steps),
            "output": text or "(nothing)",
            "tools": ", ".join(tools),
            "mark": case.mark,
        },
    )


def _what(case: Case) -> str:
    return "two responses" if case.is_pair else "one response"


def _material(case: Case, most: int = 0) -> dict[str, str]:
    texts = [response.text for response in case.responses]
    request = case.request
    if most:
        request, texts = cut(request, most), [cut(text, most) for text in texts]
    blocks = [
        filled("response", {"label": label, "text": text, "mark": case.mark})
        for label, text in zip(case.labels, texts, strict=True)
    ]
    return {"request": request, "responses": "\n".join(blocks), "mark": case.mark}
