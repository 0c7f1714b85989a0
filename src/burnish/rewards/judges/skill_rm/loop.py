"""The agent: a judge that opens what it needs, checks, and ends with one final answer.

    judged = await judge_case(judge, case, toolbox, skills)
    judged.answer, judged.source, judged.steps, judged.replies  # or no answer, status and reason

Without a final answer after the last step the judge is told to give it now, then asked for one plain
line. What is still no answer stays none: the caller may ask a direct judge, nobody makes a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from burnish import rollouts
from burnish.records import Finish, Message, Status, Task
from burnish.rewards.judges import prompting
from burnish.rewards.judges.agent import play
from burnish.rewards.judges.free_forms import parse_pairwise_verdict
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Reply, Unreadable, as_user
from burnish.rewards.judges.skill_rm.package import SkillPackage
from burnish.rewards.judges.skill_rm.readout import (
    Answer,
    Call,
    Count,
    PairAnswer,
    PointAnswer,
    read_call,
    read_pair_answer,
    read_point_answer,
)
from burnish.rewards.judges.skill_rm.resources import CAPS
from burnish.rewards.judges.skill_rm.tools import Limits, Toolbox, ToolUse, cut
from burnish.rewards.judges.skill_rm.verifiers import Case
from burnish.rollouts import Observation, Tool

_SHARE = re.compile(r"final:\s*(\d{1,4})\s*/\s*(\d{1,4})\.?", re.IGNORECASE)
_LINE = re.compile(r"final:\s*(a|b|tie)\.?", re.IGNORECASE)


@dataclass
class Judged:
    """How one judgement went."""

    answer: Answer | None = None
    source: str = ""
    """final_answer, forced or plain; empty where there is no answer."""
    status: Status = Status.OK
    reason: str = ""
    steps: int = 0
    replies: list[Reply] = field(default_factory=list)


async def judge_case(
    judge: JudgeModel,
    case: Case,
    toolbox: Toolbox,
    skills: Sequence[SkillPackage],
    *,
    vote: int = 0,
) -> Judged:
    """Let the judge work on a case; what it did stands in `toolbox.trace`."""
    env = SkillEnv(case, toolbox, skills)
    limits = toolbox.limits
    own = rollouts.Limits(
        turns=limits.steps + 2,  # the forced answer and the plain line
        tokens=limits.tokens,
        time_s=limits.time_s,
        cost_usd=limits.cost_usd,
    )
    ended = await play(judge, env, about=case.about, limits=own, vote=vote)
    judged = Judged(env.answer, env.source, steps=env.steps, replies=env.replies)
    if ended.status is not Status.OK:
        judged.status, judged.reason = ended.status, ended.reason
    elif limit := ended.info.get("ended_by"):
        judged.status = Status.ABSTAIN
        judged.reason = f"no final answer within the limit on {limit}"
    elif judged.answer is None:
        judged.status = Status.PARSE_ERROR
        judged.reason = f"no final answer: {_last_error(toolbox)}"
    return judged


class SkillEnv:
    """One judgement as an environment: steps with tools, a forced answer, one plain line."""

    tools: Sequence[Tool] = ()
    """None for the rollout to carry out: which tools there are changes with what is opened."""

    def __init__(self, case: Case, toolbox: Toolbox, skills: Sequence[SkillPackage]) -> None:
        self.case, self.toolbox, self.skills = case, toolbox, skills
        self.answer: Answer | None = None
        self.source = ""
        self.steps = 0
        self.kind = "skill_step"
        self.replies: list[Reply] = []

    async def reset(self, task: Task, seed: int) -> Observation:
        limits = self.toolbox.limits
        text = first_message(self.case, self.skills, _opening_tools(self.toolbox), limits)
        self.steps = 1
        return Observation(as_user(text, self.case.task.media, self.case.mark))

    async def step(self, reply: Message) -> Observation:
        """Carry out the call of a reply; a tool that fails is what the judge reads next."""
        limits = self.toolbox.limits
        if self.kind == "skill_plain":
            return self._plain(self.replies[-1])
        await self._call(reply)
        if self.answer is not None:
            return Observation(done=True)
        if self.kind == "skill_forced":
            self.kind = "skill_plain"
            return Observation(
                as_user(wording("plain_pair" if self.case.is_pair else "plain_point"))
            )
        is_last = self.steps == limits.steps
        offered = ("final_answer",) if is_last else self.toolbox.offered
        told = result_message(self.case, self.toolbox.trace[-1], offered, limits)
        if is_last:
            self.kind = "skill_forced"
            told = f"{told}\n{filled('forced', {'contract': contract(self.case)})}"
        else:
            self.steps += 1
        return Observation(as_user(told))

    async def _call(self, reply: Message) -> None:
        """What the reply calls for: the final answer, or a tool while there are steps left."""
        is_forced = self.kind == "skill_forced"
        tool = "forced" if is_forced else "unreadable"
        try:
            call = read_call(reply.text, self.case.shown)
            if call.tool == "final_answer":
                tool = tool if is_forced else "final_answer"
                self.answer = read_answer(self.case, call)
                self.source = tool
            elif is_forced:
                raise Unreadable(f"called {call.tool:.60} instead")
            else:
                await self.toolbox.use(self.steps, call)
        except Unreadable as error:
            is_cut = self.replies[-1].finish is Finish.LENGTH
            cut = " (the reply was cut at max_tokens)" if is_cut else ""
            self.toolbox.note(self.steps, tool, f"{error}{cut}")

    def _plain(self, reply: Reply) -> Observation:
        self.answer = read_plain(self.case, reply)
        self.source = "plain" if self.answer is not None else ""
        if self.answer is None:
            said = f"no line 'Final: ...' in {reply.text[:200]!r}"
            self.toolbox.note(self.steps, "plain", said)
        return Observation(done=True)


def read_plain(case: Case, reply: Reply) -> Answer | None:
    """The answer of one plain line; None where it says anything else, or was cut."""
    lines = [line.strip().strip("*`") for line in reply.text.splitlines() if line.strip()]
    if reply.finish is Finish.LENGTH or not lines:
        return None
    if case.is_pair:
        said = {line.lower().rstrip(".") for line in lines if _LINE.fullmatch(line)}
        side = {"A": 1, "B": -1, "Tie": 0}.get(parse_pairwise_verdict(lines[-1]))
        if len(said) != 1 or not _LINE.fullmatch(lines[-1]) or side is None:
            return None
        return PairAnswer(side, "one plain line")
    share = _SHARE.fullmatch(lines[-1])
    if share is None or not 0 <= int(share[1]) <= int(share[2]) or int(share[2]) == 0:
        return None
    met, total = int(share[1]), int(share[2])
    counts = [Count(f"requirement {i + 1}", i < met, "one plain line") for i in range(total)]
    return PointAnswer(met / total, "one plain line", tuple(counts))


def read_answer(case: Case, call: Call) -> Answer:
    """The answer of a call."""
    return (read_pair_answer if case.is_pair else read_point_answer)(call.arguments)


def _opening_tools(toolbox: Toolbox) -> tuple[str, ...]:
    """Tools for the opening: with skills also those that opening one adds."""
    offered = toolbox.offered
    if not toolbox.skills:
        return offered
    later = toolbox.after_opening
    return (*(tool for tool in offered if tool != "final_answer"), *later, "final_answer")


def _last_error(toolbox: Toolbox) -> str:
    errors = [used.error for used in toolbox.trace if used.error]
    return errors[-1] if errors else "the judge used all of its steps"


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
