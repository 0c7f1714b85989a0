"""Run untrusted code with limits, and report how strong the isolation is.

The code runs in another process with an empty environment, no network, its own folder and hard
limits, under every isolation layer that the machine has. Before the first run the layers are
probed; if they are weak, nothing runs unless you said `allow_weak=True` (docs/sandbox.md).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from burnish.errors import SandboxError, UserError
from burnish.tools.inside.run_spec import RunSpec
from burnish.tools.isolation import (
    Layer,
    Mounts,
    Plan,
    Ran,
    RunStatus,
    SandboxLimits,
    chosen,
    interpreter_mounts,
)
from burnish.tools.probe import Report, Strength, probe
from burnish.tools.process import START_S, Finished, Run, Stopped, run_spec, work_folder
from burnish.tools.supervisor import available_cores, wait_in_thread

T = TypeVar("T")
logger = logging.getLogger(__name__)

_known: dict[tuple[object, ...], Report] = {}
_probing = threading.Lock()  # invariant: each setting is probed once in a process


class Sandbox:
    """Runs untrusted Python code under the isolation layers of this machine."""

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        allow_weak: bool = False,
        layers: Iterable[Layer | str] | None = None,
        readable: Sequence[str | Path] = (),
        workers: int | None = None,
    ) -> None:
        """`layers` chooses isolation layers (all that work by default); `readable` folders can be imported
        from; at most `workers` runs go on at a time (one a core by default).
        """
        self.limits = limits or SandboxLimits()
        self.allow_weak = allow_weak
        self._wanted = frozenset(Layer) if layers is None else chosen(layers)
        self._readable = tuple(Path(path).resolve() for path in readable)
        if missing := [path for path in self._readable if not path.is_dir()]:
            raise UserError(f"sandbox: readable folder '{missing[0]}' is not there.")
        self.workers = workers or available_cores()

    def probe(self) -> Report:
        """Probe every layer with real attempts to escape; the report is cached."""
        key = (self._wanted, self._readable, self.limits.processes, os.geteuid())
        with _probing:
            if key not in _known:
                report = _known[key] = probe(self._wanted, self._mounts, self.limits.processes)
                level = logging.INFO if report.strength is Strength.STRONG else logging.WARNING
                logger.log(level, "sandbox: %s", report.summary)
            return _known[key]

    def run(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
    ) -> Ran:
        """Run a program; `files` are put into its folder. `SandboxError` if it cannot be run.

        What it printed is its own word and proves nothing: to test a function use `examine`.
        """
        for name in files or {}:
            parts = PurePosixPath(name).parts
            if not parts or name.startswith("/") or ".." in parts or "\0" in name:
                raise UserError(f"sandbox: file name '{name}' leaves the folder.")
        plan = self._plan()
        with work_folder(plan) as work:
            spec = self._spec(plan, work, "program", code, files)
            given = stdin.encode("utf-8", "surrogateescape")
            finished = Run(plan, spec, self._mounts, self.limits, stdin=given, stop=stop).finish()
        if not finished.is_clean:
            raise SandboxError(f"something of the run outlived it (layers: {plan})")
        return finished.ran

    def _spec(
        self,
        plan: Plan,
        work: str,
        role: str,
        code: str,
        files: Mapping[str, str] | None = None,
    ) -> RunSpec:
        paths = map(str, self._readable)
        return run_spec(plan, self._mounts, self.limits, work, role, code, files, paths)

    async def arun(
        self, code: str, *, stdin: str = "", files: Mapping[str, str] | None = None
    ) -> Ran:
        """`run` from an event loop, at most `workers` at a time; a cancelled run is killed."""
        return await self._away(partial(self.run, code, stdin=stdin, files=files))

    def examine(self, exam: Exam, *, stop: threading.Event | None = None) -> Marks:
        """Test a candidate's functions; the tests run in another process than the candidate."""
        plan = self._plan()
        limits = replace(
            self.limits,
            # The candidate's clock may start later than the examiner's, and must end first.
            wall_s=START_S + self.limits.wall_s + EXAMINER_S,
            processes=1,
            output_kb=max(1024, self.limits.output_kb),
        )
        over = threading.Event()
        calls, answers, notes = os.pipe(), os.pipe(), os.pipe()
        with contextlib.ExitStack() as stack:
            # Closed once both run, so that the end of one process is seen by the other.
            shared = stack.enter_context(contextlib.ExitStack())
            for end in (*calls, *answers, notes[1]):
                shared.callback(os.close, end)
            heard = stack.enter_context(contextlib.ExitStack())
            heard.callback(os.close, notes[0])
            folders = [stack.enter_context(work_folder(plan)) for _ in range(2)]
            spec = self._spec(plan, folders[0], "candidate", exam.code)
            spec = spec._replace(talk=(calls[0], answers[1]))
            candidate = Run(plan, spec, self._mounts, self.limits, stop=over)
            ended: list[Finished | Exception] = []

            def play() -> None:
                try:
                    ended.append(candidate.finish())
                except Exception as error:
                    ended.append(error)

            waiting = threading.Thread(target=play, daemon=True)
            waiting.start()
            try:
                spec = self._spec(plan, folders[1], "examiner", "")._replace(
                    bounds=limits.bounds(),
                    talk=(answers[0], calls[1]),
                    answer=notes[1],
                    tests=exam.tests,
                    setup=exam.setup,
                    entry_point=exam.entry_point,
                    keep_going=exam.keep_going,
                )
                examiner = Run(plan, spec, self._mounts, limits, notes=notes[0], stop=stop)
                heard.pop_all()  # that end is the examiner's from now on
                shared.close()
                finished = examiner.finish()
            finally:
                over.set()
                waiting.join()
        (outcome,) = ended
        if isinstance(outcome, Stopped):  # it was ended because the examination was over
            return _marks(finished, None)
        if isinstance(outcome, Exception):
            raise outcome
        if not outcome.is_clean:
            raise SandboxError("something of the candidate outlived its run")
        return _marks(finished, outcome.ran)

    async def aexamine(self, exam: Exam) -> Marks:
        """`examine` from an event loop; a cancelled one is killed."""
        return await self._away(partial(self.examine, exam))

    @cached_property
    def _mounts(self) -> Mounts:
        return interpreter_mounts(self._readable)

    def _plan(self) -> Plan:
        report = self.probe()
        if report.strength is Strength.WEAK and not self.allow_weak:
            raise UserError(f"the sandbox is {report.summary}. Say allow_weak = true to use it.")
        return report.plan

    async def _away(self, call: Callable[..., T]) -> T:
        """Make the call in a thread; when the caller is cancelled, the process is killed at once."""
        stop = threading.Event()
        try:
            return await wait_in_thread(partial(call, stop=stop), "sandbox", self.workers)
        finally:
            stop.set()


EXAMINER_S = 5.0
"""Seconds that the tests may take beside the candidate's own."""


@dataclass(frozen=True)
class Exam:
    """Code and the tests that it must pass."""

    code: str
    tests: tuple[str, ...]
    """Python sources with asserts, run in order in one scope."""
    setup: str = ""
    """Trusted code that the tests may use; its names win over the candidate's."""
    entry_point: str = ""
    """The function under test; the tests know it by this name and as `candidate`."""
    keep_going: bool = False
    """Count every assert, instead of stopping at the first failure."""


class Failure(NamedTuple):
    """A test that did not pass."""

    test: str
    why: str
    last_call: str
    """The candidate's last answer before it."""


class Marks(NamedTuple):
    """What the examiner noted."""

    passed: int
    """Asserts of the tests that were reached and held every time."""
    total: int
    """Asserts that stand in the tests, reached or not; one inside a `try` only where it was reached."""
    failures: tuple[Failure, ...]
    broken: str
    """Why the tests themselves could not be run; empty where they could."""
    is_complete: bool
    """Whether the tests ran to their end."""
    candidate: Ran | None
    """How the candidate's process ended; None where it was still waiting for calls."""


def _marks(finished: Finished, candidate: Ran | None) -> Marks:
    lines: list[dict[str, Any]] = []
    for line in finished.notes.splitlines():
        with contextlib.suppress(ValueError):  # the last line of a killed examiner may be cut
            lines.append(json.loads(line))
    failures = [
        Failure(line["failed"], line["why"], line["last"]) for line in lines if "failed" in line
    ]
    broken = next((line["broken"] for line in lines if "broken" in line), "")
    is_complete = any("done" in line for line in lines)
    if not is_complete and not broken:
        ran = finished.ran
        why = f"did not end: {ran}"
        if ran.status is RunStatus.FAILED and ran.stderr:
            why = f"did not end well: {ran.stderr.strip().splitlines()[-1][:200]}"
        if not any("answered" in line for line in lines):
            raise SandboxError(f"the examiner {why}")
        # Answers that keep the tests from ending are wrong answers, not trouble of ours.
        failures.append(Failure("the tests", f"with these answers they {why}", ""))
    expected = {(*one,) for line in lines for one in line.get("asserts", ())}
    held = {(*line["passed"],) for line in lines if "passed" in line}
    failed = {(*line["place"],) for line in lines if line.get("place")}
    asserts = {place for place in expected | held | failed if len(place) > 1}
    passed = held - failed
    # An error between two asserts counts by those that were not reached for it, else as one more.
    lost = {source for source, *_ in asserts - passed}
    between = {source for source, *number in failed if not number and source not in lost}
    total = len(asserts) + len(between)
    return Marks(len(passed), total, tuple(failures), broken, is_complete, candidate)
