"""The agent: a judge that opens what it needs, checks, and ends with one final answer.

Without a final answer after the last step the judge is told to give it now, then asked for one plain
line. What is still no answer stays none: the caller may ask a direct judge, nobody makes a default.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.errors import SandboxError, did_you_mean
from burnish.lm.budget import estimate_tokens
from burnish.records import Evidence, Finish, Message, Status, Visibility
from burnish.rewards.checks import texts
from burnish.rewards.judges import prompting
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Question, Reply, Unreadable, as_user
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
from burnish.rewards.judges.skill_rm.verifiers import (
    CAPS,
    Case,
    Finding,
    Mode,
    Resource,
    run_verifier,
)


class Limits(Struct, frozen=True, kw_only=True):
    steps: int = 5
    resources: int = 4
    resource_chars: int = 8_000
    run_calls: int = 0
    sandbox_calls: int = 3
    sandbox_s: float = 3.0
    code_chars: int = 6_000
    output_chars: int = 4_000
    tokens: int = 0
    """Written by the judge in all steps; 0: no limit."""
    time_s: float = 900.0
    """Wall clock of all steps."""
    cost_usd: float = 0.0
    """What the server may charge for all steps; 0: no limit."""

    @classmethod
    def of(cls, mode: Mode, *, is_tool: bool = False) -> Limits:
        """The published limits of a mode; `is_tool`: of a judge that has Python and no skill."""
        if mode is Mode.OPERATIONAL:
            steps = 4 if is_tool else 6
            return cls(steps=steps, resources=5, resource_chars=10_000, run_calls=3)
        return cls(steps=4) if is_tool else cls()


class ToolUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the trace."""

    step: int = 0
    tool: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    reason: str = ""
    output: str = ""
    error: str = ""
    visibility: Visibility = Visibility.VISIBLE
    is_refused: bool = False
    """Something that the mode does not allow was asked for."""

    def as_evidence(self) -> Evidence:
        told = {"step": self.step, "arguments": self.arguments, "reason": self.reason}
        text = msgspec.json.encode(told, enc_hook=str).decode() + "\n" + self.output
        return Evidence(f"tool:{self.tool}", text, self.visibility, error=self.error or None)


class Toolbox:
    """The state of one judgement: what was opened, viewed and run."""

    def __init__(
        self,
        case: Case,
        skills: Sequence[SkillPackage],
        mode: Mode,
        limits: Limits,
        runner: SandboxRunner | None = None,
        *,
        has_python: bool = False,
    ) -> None:
        self.case, self.mode, self.limits, self.runner = case, mode, limits, runner
        self.skills = {skill.name: skill.seen_in(mode) for skill in skills}
        self._hidden = {
            skill.name: {
                _plain(name)
                for entry in skill.resources
                if not entry.allowed_in(mode)
                for name in (entry.id, entry.path)
                if name
            }
            for skill in skills
        }
        self.opened: list[SkillPackage] = []
        self.trace: list[ToolUse] = []
        self.findings: list[Finding] = []
        self.viewed: dict[tuple[str, str], str] = {}
        self.runs = self.sandbox_runs = 0
        self._has_python = has_python
        self._tools: dict[str, Callable[[Mapping[str, Any]], Awaitable[ToolUse]]] = {
            "use_skill": self._use_skill,
            "list_resources": self._list_resources,
            "view_resource": self._view_resource,
            "run_resource": self._run_resource,
            "python_sandbox": self._python_sandbox,
        }

    @property
    def offered(self) -> tuple[str, ...]:
        """Tools that may be called now; more once a skill is opened."""
        names = ["use_skill"] if self.skills else []
        if self.opened:
            names += self.after_opening
        elif self.runner is not None and self._has_python:
            names.append("python_sandbox")
        return (*names, "final_answer")

    @property
    def after_opening(self) -> tuple[str, ...]:
        names = ["list_resources", "view_resource"]
        if self.mode is Mode.OPERATIONAL and self.limits.run_calls:
            names.append("run_resource")
        return (*names, "python_sandbox") if self.runner is not None else tuple(names)

    @property
    def loaded(self) -> tuple[str, ...]:
        """Ids of the resources that were opened or run, as skill/resource."""
        viewed = [f"{skill}/{entry}" for skill, entry in self.viewed]
        return tuple(dict.fromkeys([*viewed, *(f.entry.id for f in self.findings)]))

    def loaded_entry(self, name: str) -> Resource | None:
        """A resource that the judge opened, by id or path."""
        for skill in self.opened:
            entry = skill.find(name)
            if entry is not None and (skill.name, entry.id) in self.viewed:
                return entry
        return None

    async def use(self, step: int, call: Call) -> ToolUse:
        """Do what a call asks for, within mode and limits; the result stands in the trace."""
        reason = call.arguments.get("reason", "")
        if call.tool in self.offered and call.tool in self._tools:
            done = await self._tools[call.tool](call.arguments)
        else:
            is_known = call.tool in self._tools
            hint = "" if is_known else did_you_mean(call.tool, self.offered)
            said = f"no tool '{call.tool:.60}' now; you have {', '.join(self.offered)}.{hint}"
            done = ToolUse(error=said, is_refused=is_known)
        used = replace(
            done,
            step=step,
            tool=call.tool[:60],
            arguments=dict(call.arguments),
            reason=reason if isinstance(reason, str) else "",
        )
        self.trace.append(used)
        return used

    async def _use_skill(self, arguments: Mapping[str, Any]) -> ToolUse:
        name = _text(arguments, "name")
        skill = self.skills.get(name)
        if skill is None:
            return ToolUse(error=f"no skill {name!r:.60}; you have {', '.join(self.skills)}.")
        self.opened = [*(one for one in self.opened if one is not skill), skill]
        return ToolUse(output=f"{skill.procedure}\n\nResources:\n{index_of(skill)}")

    async def _list_resources(self, arguments: Mapping[str, Any]) -> ToolUse:
        return ToolUse(output=index_of(self.opened[-1]))

    async def _view_resource(self, arguments: Mapping[str, Any]) -> ToolUse:
        name = _text(arguments, "path", "id")
        entry = self.opened[-1].find(name)
        if entry is None or entry.is_runtime:
            return self._none_such(name, is_runtime=False)
        key = (self.opened[-1].name, entry.id)
        if key not in self.viewed:
            if len(self.viewed) >= self.limits.resources:
                return ToolUse(error=f"you have opened {self.limits.resources} resources, the most")
            text = self.opened[-1].texts[entry.path]
            self.viewed[key] = cut(text, self.limits.resource_chars)
        return ToolUse(output=self.viewed[key], visibility=entry.visibility)

    async def _run_resource(self, arguments: Mapping[str, Any]) -> ToolUse:
        name = _text(arguments, "id", "path")
        entry = self.opened[-1].find(name)
        if entry is None or not entry.is_runtime:
            return self._none_such(name, is_runtime=True)
        found = next((finding for finding in self.findings if finding.entry == entry), None)
        if found is None:
            if self.runs >= self.limits.run_calls:
                return ToolUse(error=f"you have run {self.limits.run_calls} resources, the most")
            self.runs += 1
            found = await run_verifier(entry, self.case)
            self.findings.append(found)
        shown = cut(f"decision: {found.decision}\n{found.observation}", self.limits.resource_chars)
        return ToolUse(output=shown, error=found.error or "", visibility=entry.visibility)

    async def _python_sandbox(self, arguments: Mapping[str, Any]) -> ToolUse:
        assert self.runner is not None, "offered only with a runner"
        code, limits = _text(arguments, "code"), self.limits
        if not code.strip():
            return ToolUse(error="no code; expected a text of Python")
        if len(code) > limits.code_chars:
            return ToolUse(error=f"{len(code)} characters; at most {limits.code_chars}")
        if self.sandbox_runs >= limits.sandbox_calls:
            return ToolUse(error=f"you have run code {limits.sandbox_calls} times, the most")
        self.sandbox_runs += 1
        shown = {"prompt": self.case.request, "responses": self.case.texts}
        ran = await self.runner.run(code, shown, timeout_s=limits.sandbox_s)
        most = limits.output_chars
        return ToolUse(output=cut(ran.output, most), error=cut(ran.error, most))

    def _none_such(self, name: str, *, is_runtime: bool) -> ToolUse:
        """The same words for what is hidden and for what is not there."""
        skill = self.opened[-1]
        ids = [entry.id for entry in skill.resources if entry.is_runtime == is_runtime]
        said = f"no such resource {name!r:.80}; there are: {', '.join(ids) or 'none'}"
        return ToolUse(error=said, is_refused=_plain(name) in self._hidden[skill.name])


def index_of(skill: SkillPackage) -> str:
    """The resources of a package, one line each."""
    lines = []
    for entry in skill.resources:
        how = "run" if entry.is_runtime else "view"
        about = entry.description or ", ".join(entry.failure_modes_mitigated) or entry.subtype
        traits = f"{entry.type}, {entry.hard_or_soft}, {entry.decision_impact}; cost {entry.cost}"
        lines.append(f"- {entry.id} ({how}; {traits}): {' '.join(about.split())}")
    return "\n".join(lines) or "(none)"


def cut(text: str, most: int) -> str:
    """The beginning of a text, with a note of what is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut: {len(text) - most} more characters]"


def _plain(name: str) -> str:
    """A name however somebody may spell it."""
    return re.sub(r"^(?:\./)+", "", name.strip()).casefold()


def _text(arguments: Mapping[str, Any], *keys: str) -> str:
    found = (arguments[key] for key in keys if isinstance(arguments.get(key), str))
    return next(found, "")


_PRELUDE = """\
def _open_case():
    import json
    with open("case.json", encoding="utf-8") as file:
        case = json.load(file)
    with open("texts.txt", encoding="utf-8") as file:
        exec(compile(file.read(), "texts", "exec"), globals())
    with open("code.txt", encoding="utf-8") as file:
        code = file.read()
    globals().update(prompt=case["prompt"], responses=case["responses"])
    return compile(code, "code", "exec")


exec(_open_case())
"""


class Ran(NamedTuple):
    """What code printed, or why it did not end well."""

    output: str
    error: str = ""


class SandboxRunner:
    """Runs code in `burnish.tools.sandbox`, whose walls are tried out before the first run."""

    def __init__(self, *, allow_weak: bool = False) -> None:
        self.allow_weak = allow_weak

    async def run(self, code: str, case: Mapping[str, object], *, timeout_s: float) -> Ran:
        """What the code printed; trouble of the sandbox itself is an error, never a finding."""
        from burnish.tools.isolation import SandboxLimits
        from burnish.tools.sandbox import Sandbox

        cpu_s = math.ceil(timeout_s)
        limits = SandboxLimits(cpu_s=cpu_s, wall_s=timeout_s, memory_mb=256, output_kb=64)
        files = {
            "case.json": json.dumps(case),
            "texts.txt": inspect.getsource(texts),
            "code.txt": code.encode("utf-8", "replace").decode(),
        }
        try:
            ran = await Sandbox(limits, allow_weak=self.allow_weak).arun(_PRELUDE, files=files)
        except SandboxError as error:
            return Ran("", f"the sandbox failed: {' '.join(str(error).split())}")
        if ran.status == "ok":
            return Ran(ran.stdout)
        last = (ran.stderr.strip().splitlines() or [""])[-1]
        return Ran(ran.stdout, f"{ran}: {last}" if last else str(ran))


_SHARE = re.compile(r"final:\s*(\d{1,4})\s*/\s*(\d{1,4})\.?", re.IGNORECASE)
_LINE = re.compile(r"final:\s*(a|b|tie)\.?", re.IGNORECASE)


@dataclass
class Judged:
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
    judged, limits = Judged(steps=1), toolbox.limits
    with anyio.move_on_after(limits.time_s) as scope:
        await _work(judge, case, toolbox, first_message(case, toolbox, skills), vote, judged)
    if scope.cancelled_caught:
        judged.status = Status.TIMEOUT
        judged.reason = f"the judgement took over {limits.time_s:g} s"
    elif judged.status is Status.OK and judged.answer is None:
        judged.status = Status.PARSE_ERROR
        errors = [used.error for used in toolbox.trace if used.error]
        judged.reason = f"no final answer: {(errors or ['the judge used all of its steps'])[-1]}"
    return judged


async def _work(
    judge: JudgeModel, case: Case, toolbox: Toolbox, opening: str, vote: int, judged: Judged
) -> None:
    """Steps with tools, a forced answer, one plain line; until an answer or a limit."""
    limits, kind = toolbox.limits, "skill_step"
    messages = [*as_user(opening, case.task.media, case.mark)]
    while True:
        tokens = sum(one.completion_tokens or estimate_tokens(one.text) for one in judged.replies)
        usd = sum(one.cost_usd for one in judged.replies if not one.is_cached)
        for name, spent, most in (
            ("cost_usd", usd, limits.cost_usd),
            ("tokens", tokens, limits.tokens),
        ):
            if most and spent >= most:
                judged.status = Status.ABSTAIN
                judged.reason = f"no final answer within the limit on {name}"
                return
        heard = await judge.ask(Question(kind, tuple(messages), case.about, vote), str)
        judged.replies.extend(heard.replies)
        if heard.verdict is None:
            judged.status, judged.reason = heard.status, heard.reason
            return
        reply = heard.replies[-1]
        if kind == "skill_plain":
            judged.answer, judged.source = read_plain(case, reply), "plain"
            if judged.answer is None:
                said = f"no line 'Final: ...' in {reply.text[:200]!r}"
                judged.source = ""
                toolbox.trace.append(ToolUse(step=judged.steps, tool="plain", error=said))
            return
        await _call(case, toolbox, reply, kind == "skill_forced", judged)
        if judged.answer is not None:
            return
        if kind == "skill_forced":
            kind, told = "skill_plain", wording("plain_pair" if case.is_pair else "plain_point")
        else:
            is_last = judged.steps == limits.steps
            told = result_message(case, toolbox, is_last=is_last)
            judged.steps += not is_last
            kind = "skill_forced" if is_last else kind
        messages += [Message("assistant", reply.text), *as_user(told)]


async def _call(
    case: Case, toolbox: Toolbox, reply: Reply, is_forced: bool, judged: Judged
) -> None:
    """What the reply calls for: the final answer, or a tool while there are steps left.

    A tool that fails is what the judge reads next.
    """
    tool = "forced" if is_forced else "unreadable"
    try:
        call = read_call(reply.text, case.shown)
        if is_forced or call.tool == "final_answer":
            tool = tool if is_forced else "final_answer"
            judged.answer = read_answer(case, call)
            judged.source = tool
        else:
            await toolbox.use(judged.steps, call)
    except Unreadable as error:
        cut = " (the reply was cut at max_tokens)" if reply.finish is Finish.LENGTH else ""
        toolbox.trace.append(ToolUse(step=judged.steps, tool=tool, error=f"{error}{cut}"))


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
    if call.tool != "final_answer":
        raise Unreadable(f"expected final_answer, got a call of {call.tool:.60}")
    return (read_pair_answer if case.is_pair else read_point_answer)(call.arguments)


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
    if case.is_pair:
        return wording("contract_pair").strip()
    return filled("contract_point", {"flags": ", ".join(CAPS)}).strip()


def first_message(case: Case, toolbox: Toolbox, skills: Sequence[SkillPackage]) -> str:
    """The opening: tools (with skills also those that opening one adds), skills by name, the case."""
    names = [f"- {skill.name}: {' '.join(skill.description.split())}" for skill in skills]
    listed = "Skills that you can open:\n" + "\n".join(names) + "\n\n" if names else ""
    later = toolbox.after_opening if toolbox.skills else ()
    offered = (*toolbox.offered[:-1], *later, toolbox.offered[-1])
    values = {
        "what": _what(case),
        "tools": "\n".join(f"- {TOOL_LINES[tool]}" for tool in offered),
        "skills": listed,
        "steps": str(toolbox.limits.steps),
        "contract": contract(case),
        **_material(case),
    }
    return filled("start", values)


def flat_message(case: Case, resources: str, sample_chars: int) -> str:
    """Everything at once: the ablation without an agent."""
    values = {"what": _what(case), "resources": resources, "contract": contract(case)}
    return filled("flat", values | _material(case, sample_chars))


def result_message(case: Case, toolbox: Toolbox, *, is_last: bool) -> str:
    used = toolbox.trace[-1]
    error = used.error and f"error: {used.error}"
    values = {
        "tool": used.tool,
        "step": str(used.step),
        "steps": str(toolbox.limits.steps),
        "output": "\n".join(filter(None, (used.output, error))) or "(nothing)",
        "tools": "final_answer" if is_last else ", ".join(toolbox.offered),
        "mark": case.mark,
    }
    told = filled("result", values)
    return f"{told}\n{filled('forced', {'contract': contract(case)})}" if is_last else told


def _what(case: Case) -> str:
    return "two responses" if case.is_pair else "one response"


def _material(case: Case, most: int = sys.maxsize) -> dict[str, str]:
    blocks = [
        filled("response", {"label": label, "text": cut(text, most), "mark": case.mark})
        for label, text in case.texts.items()
    ]
    return {"request": cut(case.request, most), "responses": "\n".join(blocks), "mark": case.mark}
