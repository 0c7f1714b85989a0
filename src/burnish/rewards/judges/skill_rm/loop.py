"""The agent: a judge that opens what it needs, checks, and ends with one final answer.

    heard = await judge_case(judge, case, toolbox, skills)
    heard.answer, heard.source, heard.steps, heard.replies      # or no answer, with status and reason

Without a final answer after the last step the judge is told to give it now, then asked for one plain
line. What is still no answer stays none: the caller may ask a direct judge, nobody makes a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from burnish.records import Finish, Message, Status
from burnish.rewards.judges import prompting
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import JudgeReply, Question, Reply, Unreadable
from burnish.rewards.judges.reading import parse_pairwise_verdict
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
from burnish.rewards.judges.skill_rm.resources import CAPS, Case
from burnish.rewards.judges.skill_rm.tools import Limits, Toolbox, ToolUse, cut

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


class _Failed(Exception):
    """The judge could not be asked: nothing further is worth a try."""

    def __init__(self, judge_reply: JudgeReply[str]) -> None:
        super().__init__(judge_reply.reason)
        self.status, self.reason = judge_reply.status, judge_reply.reason


@dataclass
class _Talk:
    """One conversation with the judge."""

    judge: JudgeModel
    case: Case
    judged: Judged
    messages: list[Message]
    vote: int

    async def ask(self, kind: str) -> Reply:
        """The next reply, whatever it says; it becomes part of the conversation."""
        question = Question(kind, tuple(self.messages), self.case.about, self.vote)
        judge_reply: JudgeReply[str] = await self.judge.ask(question, str)
        self.judged.replies += judge_reply.replies
        if judge_reply.verdict is None:
            raise _Failed(judge_reply)
        reply = judge_reply.replies[-1]
        self.messages.append(Message("assistant", reply.text))
        return reply

    def tell(self, text: str) -> None:
        self.messages.append(Message("user", text))


async def judge_case(
    judge: JudgeModel,
    case: Case,
    toolbox: Toolbox,
    skills: Sequence[SkillPackage],
    *,
    vote: int = 0,
) -> Judged:
    """Let the judge work on a case; what it did stands in `toolbox.trace`."""
    judged = Judged()
    opening = first_message(case, skills, _opening_tools(toolbox), toolbox.limits)
    talk = _Talk(judge, case, judged, [Message("user", opening)], vote)
    try:
        await _steps(talk, toolbox)
        if judged.answer is None:
            await _forced(talk, toolbox)
        if judged.answer is None:
            await _plain(talk, toolbox)
    except _Failed as failed:
        judged.status, judged.reason = failed.status, failed.reason
        return judged
    if judged.answer is None:
        judged.status = Status.PARSE_ERROR
        judged.reason = f"no final answer: {_last_error(toolbox)}"
    return judged


async def _steps(talk: _Talk, toolbox: Toolbox) -> None:
    """The ordinary steps, until an answer or the limit."""
    for step in range(1, toolbox.limits.steps + 1):
        talk.judged.steps = step
        reply = await talk.ask("skill_step")
        tool = "unreadable"
        try:
            call = _call(talk.case, reply)
            if call.tool == "final_answer":
                tool = "final_answer"
                talk.judged.answer, talk.judged.source = read_answer(talk.case, call), tool
                return
            await toolbox.use(step, call)
        except Unreadable as error:
            toolbox.note(step, tool, str(error))
        if step < toolbox.limits.steps:
            used = toolbox.trace[-1]
            talk.tell(result_message(talk.case, used, toolbox.offered, toolbox.limits))


async def _forced(talk: _Talk, toolbox: Toolbox) -> None:
    """Only `final_answer` is left."""
    used = toolbox.trace[-1]
    seen = result_message(talk.case, used, ("final_answer",), toolbox.limits)
    talk.tell(f"{seen}\n{filled('forced', {'contract': contract(talk.case)})}")
    reply = await talk.ask("skill_forced")
    try:
        call = _call(talk.case, reply)
        if call.tool != "final_answer":
            raise Unreadable(f"called {call.tool:.60} instead")
        talk.judged.answer, talk.judged.source = read_answer(talk.case, call), "forced"
    except Unreadable as error:
        toolbox.note(talk.judged.steps, "forced", str(error))


async def _plain(talk: _Talk, toolbox: Toolbox) -> None:
    """One line of text."""
    talk.tell(wording("plain_pair" if talk.case.is_pair else "plain_point"))
    reply = await talk.ask("skill_plain")
    talk.judged.answer = read_plain(talk.case, reply)
    talk.judged.source = "plain" if talk.judged.answer is not None else ""
    if talk.judged.answer is None:
        toolbox.note(talk.judged.steps, "plain", f"no line 'Final: ...' in {reply.text[:200]!r}")


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


def _call(case: Case, reply: Reply) -> Call:
    try:
        return read_call(reply.text, case.shown)
    except Unreadable as error:
        if reply.finish is not Finish.LENGTH:
            raise
        raise Unreadable(f"{error} (the reply was cut at max_tokens)") from None


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
