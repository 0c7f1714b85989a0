"""The tools of a judge, and the one boundary at which modes and limits are enforced.

    toolbox = Toolbox(case, [skill], Mode.FAIR, Limits.fair(), runner)
    used = await toolbox.use(step=1, call=Call("use_skill", {"name": "code"}, ""))
    used.output, used.error, toolbox.trace

The toolbox is made of packages as their mode sees them, so that what a mode may not see is not
there to be listed, viewed or run. A judge that asks for it gets the same words as for something
that does not exist, and the attempt is logged as refused.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from burnish.errors import SandboxError, did_you_mean
from burnish.records import Evidence, Visibility
from burnish.rewards.checks import texts
from burnish.rewards.judges.skill_rm.package import SkillPackage
from burnish.rewards.judges.skill_rm.readout import Call
from burnish.rewards.judges.skill_rm.resources import Mode, Resource
from burnish.rewards.judges.skill_rm.verifiers import Case, Finding, run_verifier


class Limits(Struct, frozen=True, kw_only=True):
    """How much a judge may do for one case."""

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
    def of(cls, mode: Mode) -> Limits:
        """The published limits of a mode."""
        if mode is Mode.OPERATIONAL:
            return cls(steps=6, resources=5, resource_chars=10_000, run_calls=3)
        return cls()


class ToolUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the trace."""

    step: int
    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    reason: str = ""
    output: str = ""
    error: str = ""
    visibility: Visibility = Visibility.VISIBLE
    is_refused: bool = False
    """Something that the mode does not allow was asked for."""

    def as_evidence(self, cost_usd: float = 0.0) -> Evidence:
        told = {"step": self.step, "arguments": self.arguments, "reason": self.reason}
        text = msgspec.json.encode(told, enc_hook=str).decode() + "\n" + self.output
        error = self.error or None
        return Evidence(f"tool:{self.tool}", text, self.visibility, cost_usd, error)


class Toolbox:
    """The state of one judgement: what was opened, viewed and run."""

    def __init__(
        self,
        case: Case,
        skills: Sequence[SkillPackage],
        mode: Mode,
        limits: Limits,
        runner: CodeRunner | None = None,
        *,
        has_python: bool = False,
    ) -> None:
        self.case, self.mode, self.limits, self.runner = case, mode, limits, runner
        self.skills = {skill.name: skill.seen_in(mode) for skill in skills}
        self._hidden = {skill.name: _hidden(skill, mode) for skill in skills}
        self.opened: list[SkillPackage] = []
        self.trace: list[ToolUse] = []
        self.findings: list[Finding] = []
        self.viewed: dict[tuple[str, str], str] = {}
        self.runs = self.sandbox_runs = 0
        self._has_python = has_python
        self._tools: dict[str, Callable[[Mapping[str, Any]], Awaitable[_Done]]] = {
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
        """Tools that an open skill adds."""
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
        if call.tool not in self.offered or call.tool not in self._tools:
            is_known = call.tool in self._tools
            hint = "" if is_known else did_you_mean(call.tool, self.offered)
            said = f"no tool '{call.tool:.60}' now; you have {', '.join(self.offered)}.{hint}"
            done = _Done(error=said, is_refused=is_known)
        else:
            done = await self._tools[call.tool](call.arguments)
        used = ToolUse(
            step=step,
            tool=call.tool[:60],
            arguments=dict(call.arguments),
            reason=reason if isinstance(reason, str) else "",
            output=done.output,
            error=done.error,
            visibility=done.visibility,
            is_refused=done.is_refused,
        )
        self.trace.append(used)
        return used

    def note(self, step: int, tool: str, error: str) -> None:
        """Keep in the trace that a step was spent on something that is no call."""
        self.trace.append(ToolUse(step=step, tool=tool, error=error))

    async def _use_skill(self, arguments: Mapping[str, Any]) -> _Done:
        name = arguments.get("name")
        skill = self.skills.get(name) if isinstance(name, str) else None
        if skill is None:
            known = ", ".join(self.skills)
            return _Done(error=f"no skill {name!r:.60}; you have {known}.")
        self.opened = [*(one for one in self.opened if one is not skill), skill]
        return _Done(f"{skill.procedure}\n\nResources:\n{index_of(skill)}")

    async def _list_resources(self, arguments: Mapping[str, Any]) -> _Done:
        return _Done(index_of(self.opened[-1]))

    async def _view_resource(self, arguments: Mapping[str, Any]) -> _Done:
        name = _name(arguments, "path", "id")
        entry = self.opened[-1].find(name)
        if entry is None or entry.is_runtime:
            return self._none_such(name, [e for e in self.opened[-1].resources if e.path])
        key = (self.opened[-1].name, entry.id)
        if key not in self.viewed:
            if len(self.viewed) >= self.limits.resources:
                return _Done(error=f"you have opened {self.limits.resources} resources, the most")
            text = self.opened[-1].texts[entry.path]
            self.viewed[key] = cut(text, self.limits.resource_chars)
        return _Done(self.viewed[key], visibility=entry.visibility)

    async def _run_resource(self, arguments: Mapping[str, Any]) -> _Done:
        name = _name(arguments, "id", "path")
        entry = self.opened[-1].find(name)
        if entry is None or not entry.is_runtime:
            return self._none_such(name, [e for e in self.opened[-1].resources if e.is_runtime])
        before = [finding for finding in self.findings if finding.entry == entry]
        if not before:
            if self.runs >= self.limits.run_calls:
                return _Done(error=f"you have run {self.limits.run_calls} resources, the most")
            self.runs += 1
            before = [await run_verifier(entry, self.case)]
            self.findings += before
        text = f"decision: {before[0].decision}\n{before[0].observation}"
        shown = cut(text, self.limits.resource_chars)
        return _Done(shown, before[0].error or "", entry.visibility)

    async def _python_sandbox(self, arguments: Mapping[str, Any]) -> _Done:
        code = arguments.get("code")
        if not isinstance(code, str) or not code.strip():
            return _Done(error="no code; expected a text of Python")
        if len(code) > self.limits.code_chars:
            return _Done(error=f"{len(code)} characters; at most {self.limits.code_chars}")
        if self.sandbox_runs >= self.limits.sandbox_calls:
            return _Done(error=f"you have run code {self.limits.sandbox_calls} times, the most")
        self.sandbox_runs += 1
        texts = dict(zip(self.case.labels, (r.text for r in self.case.responses), strict=True))
        shown = visible_case(self.case.request, texts)
        ran = await _runner(self.runner).run(code, shown, timeout_s=self.limits.sandbox_s)
        return _Done(
            cut(ran.output, self.limits.output_chars),
            error=cut(ran.error, self.limits.output_chars),
        )

    def _none_such(self, name: str, there: Sequence[Resource]) -> _Done:
        """The same words for what is hidden and for what is not there."""
        ids = [entry.id for entry in there]
        is_hidden = _plain(name) in self._hidden[self.opened[-1].name]
        listed = ", ".join(ids) or "none"
        return _Done(
            error=f"no such resource {name!r:.80}; there are: {listed}", is_refused=is_hidden
        )


class _Done(Struct, frozen=True):
    """What a tool gives back."""

    output: str = ""
    error: str = ""
    visibility: Visibility = Visibility.VISIBLE
    is_refused: bool = False


def index_of(skill: SkillPackage) -> str:
    """The resources of a package, one line each."""
    return "\n".join(_line(entry) for entry in skill.resources) or "(none)"


def cut(text: str, most: int) -> str:
    """The beginning of a text, with a note of what is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut: {len(text) - most} more characters]"


def _line(entry: Resource) -> str:
    how = "run" if entry.is_runtime else "view"
    about = entry.description or ", ".join(entry.failure_modes_mitigated) or entry.subtype
    traits = f"{entry.type.value}, {entry.hard_or_soft.value}, {entry.decision_impact.value}"
    return f"- {entry.id} ({how}; {traits}; cost {entry.cost.value}): {' '.join(about.split())}"


def _hidden(skill: SkillPackage, mode: Mode) -> frozenset[str]:
    """Names that a mode may not see, as somebody may spell them."""
    hidden = [entry for entry in skill.resources if not entry.allowed_in(mode)]
    return frozenset(_plain(name) for entry in hidden for name in (entry.id, entry.path) if name)


def _plain(name: str) -> str:
    return re.sub(r"^(?:\./)+", "", name.strip()).casefold()


def _name(arguments: Mapping[str, Any], *keys: str) -> str:
    found = (arguments[key] for key in keys if isinstance(arguments.get(key), str))
    return next(found, "")


def _runner(runner: CodeRunner | None) -> CodeRunner:
    if runner is None:
        raise RuntimeError("python_sandbox is offered only with a runner")
    return runner


MEMORY_MB = 256
OUTPUT_KB = 64
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


class CodeRunner(Protocol):
    """Anything that runs code apart from this process."""

    async def run(self, code: str, case: Mapping[str, object], *, timeout_s: float) -> Ran: ...


def visible_case(prompt: str, responses: Mapping[str, str]) -> dict[str, object]:
    """All that code may look at."""
    return {"prompt": prompt, "responses": dict(responses)}


class SandboxRunner:
    """Runs code in `burnish.tools.sandbox`, whose walls are tried out before the first run."""

    def __init__(self, *, allow_weak: bool = False) -> None:
        self.allow_weak = allow_weak

    async def run(self, code: str, case: Mapping[str, object], *, timeout_s: float) -> Ran:
        """What the code printed; trouble of the sandbox itself is an error, never a finding."""
        from burnish.tools.limits import SandboxLimits
        from burnish.tools.sandbox import Sandbox

        limits = SandboxLimits(
            cpu_s=math.ceil(timeout_s),
            wall_s=timeout_s,
            memory_mb=MEMORY_MB,
            output_kb=OUTPUT_KB,
        )
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
