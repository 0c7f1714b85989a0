"""The agent: a judge that opens what it needs, checks, and ends with one final answer.

    heard = await judge_case(judge, case, toolbox, skills)
    heard.answer, heard.source, heard.steps, heard.replies      # or no answer, with status and reason

Without a final answer after the last step the judge is told to give it now, then asked for one plain
line. What is still no answer stays none: the caller may ask a direct judge, nobody makes a default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.records import Finish, Message, Status
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.questions import Heard, Question, Reply
from burnish.rewards.judges.readouts import parse_pairwise_verdict
from burnish.rewards.judges.skill_rm.cases import Case
from burnish.rewards.judges.skill_rm.package import SkillPackage
from burnish.rewards.judges.skill_rm.prompting import (
    contract,
    filled,
    first_message,
    result_message,
    wording,
)
from burnish.rewards.judges.skill_rm.protocol import (
    Answer,
    Broken,
    Call,
    NoAnswer,
    PairAnswer,
    PointAnswer,
    read_call,
    read_pair_answer,
    read_point_answer,
)
from burnish.rewards.judges.skill_rm.readout import Count
from burnish.rewards.judges.skill_rm.tools import Toolbox

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

    def __init__(self, heard: Heard[str]) -> None:
        super().__init__(heard.reason)
        self.status, self.reason = heard.status, heard.reason


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
        heard: Heard[str] = await self.judge.ask(question, str)
        self.judged.replies += heard.replies
        if heard.verdict is None:
            raise _Failed(heard)
        reply = heard.replies[-1]
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
    opening = first_message(case, skills, _told_tools(toolbox), toolbox.limits)
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
        call = _call(talk.case, reply)
        if isinstance(call, Call) and call.tool == "final_answer":
            talk.judged.answer, why = read_answer(talk.case, call)
            if talk.judged.answer is not None:
                talk.judged.source = "final_answer"
                return
            toolbox.note(step, "final_answer", why)
        elif isinstance(call, Call):
            await toolbox.use(step, call)
        else:
            toolbox.note(step, "unreadable", call.why)
        if step < toolbox.limits.steps:
            used = toolbox.trace[-1]
            talk.tell(result_message(talk.case, used, toolbox.offered, toolbox.limits))


async def _forced(talk: _Talk, toolbox: Toolbox) -> None:
    """Only `final_answer` is left."""
    used = toolbox.trace[-1]
    seen = result_message(talk.case, used, ("final_answer",), toolbox.limits)
    talk.tell(f"{seen}\n{filled('forced', {'contract': contract(talk.case)})}")
    call = _call(talk.case, await talk.ask("skill_forced"))
    if isinstance(call, Call) and call.tool == "final_answer":
        talk.judged.answer, why = read_answer(talk.case, call)
        talk.judged.source = "forced" if talk.judged.answer is not None else ""
    else:
        why = call.why if isinstance(call, Broken) else f"called {call.tool:.60} instead"
    if talk.judged.answer is None:
        toolbox.note(talk.judged.steps, "forced", why)


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


def _call(case: Case, reply: Reply) -> Call | Broken:
    call = read_call(reply.text, case.shown)
    if isinstance(call, Broken) and reply.finish is Finish.LENGTH:
        return Broken(f"{call.why} (the reply was cut at max_tokens)")
    return call


def read_answer(case: Case, call: Call) -> tuple[Answer | None, str]:
    """The answer of a call, or why it is none."""
    try:
        read = read_pair_answer if case.is_pair else read_point_answer
        return read(call.arguments), ""
    except NoAnswer as error:
        return None, str(error)


def _told_tools(toolbox: Toolbox) -> tuple[str, ...]:
    """Tools for the opening: with skills also those that opening one adds."""
    offered = toolbox.offered
    if not toolbox.skills:
        return offered
    later = toolbox.after_opening
    return (*(tool for tool in offered if tool != "final_answer"), *later, "final_answer")


def _last_error(toolbox: Toolbox) -> str:
    errors = [used.error for used in toolbox.trace if used.error]
    return errors[-1] if errors else "the judge used all of its steps"
