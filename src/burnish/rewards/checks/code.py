"""Does the code in the response pass the task's tests? Run in the sandbox; value 0 or 1, or a share.

    [[rewards]]
    kind = "code"                # task fields: test, entry_point and prompt, as in HumanEval
    mode = "share"

Tests are one of: Python source (with `check(candidate)` as in HumanEval, or bare asserts), a list
of asserts, or cases `{"input", "output"}` for programs that read stdin and print. They run in
another process than the response's code, which can neither see nor change them. Code that loops,
crashes or leaves has failed its tests; only trouble of the sandbox's own gives no value.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from burnish import tools
from burnish.boundary import PositiveInt, Seconds
from burnish.errors import SandboxError, UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Visibility
from burnish.rewards.checks.base import Check, CheckConfig, sources
from burnish.rewards.checks.extract import short
from burnish.rewards.scorer import gather
from burnish.seeds import digest
from burnish.tools import Exam, Marks, Ran, RunStatus, Sandbox, SandboxLimits

LONGEST_CODE = 200_000
"""Characters of the longest code that is run."""
SHOWN = 3
"""Failures that are kept as evidence."""


TESTS, ENTRY = "test", "entry_point"
"""Task fields: the tests, and the function under test, not needed for bare asserts and programs. The
field `prompt`, where there is one, is the code that the response completes."""


class CodeConfig(CheckConfig, frozen=True, tag="code"):
    """The response's code passes every test: 1, else 0; with `share`, the share of passed tests."""

    mode: Literal["all", "share"] = "all"
    """`all`: 1 where no test fails; `share`: the share of the asserts or cases that pass, those that
    are never reached counted as failed."""
    timeout_s: Seconds = 10.0
    """Seconds on the clock for all tests of one response, or for one case of a program."""
    memory_mb: PositiveInt = 512
    """Most memory of the tests, in megabytes."""
    processes: PositiveInt = 1
    """Most processes that the code may have."""
    allow_weak: bool = False
    """Run also where the sandbox of this machine is weak."""


class Case(NamedTuple):
    """One run of a program: what it reads and what it must print."""

    input: str
    output: str


class Code(Check[CodeConfig]):
    """Runs code in the sandbox, one examination a response."""

    needs = frozenset({TESTS})

    def __init__(self, config: CodeConfig) -> None:
        super().__init__(config)
        limits = SandboxLimits(
            cpu_s=config.timeout_s,
            wall_s=config.timeout_s,
            memory_mb=config.memory_mb,
            processes=config.processes,
        )
        self.sandbox = Sandbox(limits, allow_weak=config.allow_weak)

    @property
    def fingerprint(self) -> str:
        """Changes also with the sandbox's source and with the version of Python."""
        return digest(super().fingerprint, sources(Path(tools.__file__).parent), sys.version)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        tests = read_tests(task)
        if not tests:
            return [self.abstained("the task has no tests") for _ in responses]
        return await gather([partial(self._one, task, tests, r.text) for r in responses])

    async def _one(
        self, task: Task, tests: tuple[str, ...] | tuple[Case, ...], text: str
    ) -> Reward:
        code = last_code_block(text)
        if not code.strip() or len(code) > LONGEST_CODE or "\0" in code:
            return self._decided(0.0, [f"no code that can be run in {short(text)!r}"])
        try:
            if cases := [case for case in tests if isinstance(case, Case)]:
                return await self._program(code, cases)
            asserts = tuple(source for source in tests if isinstance(source, str))
            exam = make_exam(task, self.config, code, asserts)
            return self._marked(await self.sandbox.aexamine(exam))
        except SandboxError as error:
            return Reward.failed(self.name, Status.INFRA_ERROR, f"sandbox: {error}")

    def _marked(self, marks: Marks) -> Reward:
        if marks.broken:
            return self.abstained(f"the tests cannot be run: {marks.broken}")
        if not marks.passed and not marks.failures:
            return self.abstained("the tests reach no assert, whatever the code answers")
        saw = [f"{marks.passed} of {marks.total} asserts passed"]
        for one in marks.failures[:SHOWN]:
            last = short(f"; {one.last_call}", 300) if one.last_call else ""
            saw.append(f"failed: {short(one.test, 200)}: {short(one.why, 200)}{last}")
        if marks.candidate is not None and marks.failures:
            saw.append(f"the process of the code {marks.candidate}")
        is_loaded = not any(failure.test == "loading the code" for failure in marks.failures)
        if self.config.mode == "share" and marks.is_complete and is_loaded:
            return self._decided(marks.passed / marks.total, saw)
        return self._decided(float(not marks.failures and marks.is_complete), saw)

    async def _program(self, code: str, cases: Sequence[Case]) -> Reward:
        """Run a program once a case; in the mode `all` only until one fails."""
        passed, saw = 0, []
        for case in cases:
            ran = await self.sandbox.arun(code, stdin=case.input)
            problem = _mismatch(ran, case)
            passed += not problem
            if problem:
                saw.append(f"failed: input {short(case.input)!r}: {problem}")
                if self.config.mode == "all":
                    break
        saw = [f"{passed} of {len(cases)} cases passed", *saw[:SHOWN]]
        value = passed / len(cases)
        return self._decided(value if self.config.mode == "share" else float(value == 1), saw)

    def _decided(self, value: float, saw: Sequence[str]) -> Reward:
        evidence = tuple(Evidence(self.name, line, Visibility.BENCHMARK) for line in saw)
        return Reward(self.name, value, evidence=evidence)


def read_tests(task: Task) -> tuple[str, ...] | tuple[Case, ...]:
    """A task's tests in one of three forms; empty where it has none."""
    value = task.fields.get(TESTS)
    where = f"task {task.id}: field '{TESTS}'"
    if value is None or value == "" or value == []:
        return ()
    if isinstance(value, str):
        return (_called(value, task, where),)
    try:
        if isinstance(value, Mapping):
            pairs = zip(value["inputs"], value["outputs"], strict=True)
            return tuple(Case(_text(given), _text(wanted)) for given, wanted in pairs)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        return tuple(Case(_text(item["input"]), _text(item["output"])) for item in value)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{where}: got {value!r:.80}, expected Python source, a list of asserts, a list of tables with "
            "'input' and 'output', or a table with as many 'inputs' as 'outputs'"
        ) from None


def make_exam(task: Task, config: CodeConfig, code: str, tests: tuple[str, ...]) -> Exam:
    """The response's code with what it completes, and the tests with the task's own helpers."""
    entry = str(task.fields.get(ENTRY) or "")
    prompt = str(task.fields.get("prompt") or "")
    has_stub = bool(entry) and _defines(prompt, entry)
    if has_stub and not re.search(r"^from __future__", code, re.MULTILINE):
        code = f"{prompt}\n\n{code}" if _defines(code, entry) else f"{prompt}{code}"
    return Exam(
        code=code,
        tests=tests,
        setup=prompt if has_stub else "",
        entry_point=entry,
        keep_going=config.mode == "share",
    )


def last_code_block(text: str) -> str:
    """The last fenced block that is Python or unnamed; without one, the text itself.

    A last block that was never closed counts: the answer was cut, and its tests will say so.
    """
    blocks: list[str] = []
    lines: list[str] | None = None
    is_python = False
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if not mark.startswith("```"):
            if lines is not None:
                lines.append(line)
        elif lines is None:
            lines, is_python = [], mark[3:].strip().lower() in ("", "python", "py", "python3")
        else:
            if is_python:
                blocks.append("".join(lines))
            lines = None
    if lines is not None and is_python and lines:
        blocks.append("".join(lines))
    return blocks[-1] if blocks else text


def _called(source: str, task: Task, where: str) -> str:
    """HumanEval's tests define `check` and leave it to others to call it."""
    if not re.search(r"^def check\(", source, re.MULTILINE):
        return source
    if not task.fields.get(ENTRY):
        raise UserError(
            f"{where} defines check(candidate), but the task has no '{ENTRY}'; name "
            "the function under test there."
        )
    return f"{source}\n\ncheck(candidate)\n"


def _defines(code: str, name: str) -> bool:
    """Whether a name is defined at the left margin; by pattern, since code may be hostile."""
    word = re.escape(name)
    found = re.search(rf"^(?:(?:async\s+)?def\s+{word}\b|class\s+{word}\b|{word}\s*=)", code, re.M)
    return found is not None


def _mismatch(ran: Ran, case: Case) -> str:
    """Why a run is not what the case wants, or an empty text."""
    if ran.status is not RunStatus.OK:
        words = ran.stderr.strip().splitlines()
        return f"{ran}{': ' + short(words[-1], 200) if words else ''}"
    if _lines(ran.stdout) == _lines(case.output):
        return ""
    return f"printed {short(ran.stdout)!r}; expected {short(case.output)!r}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
