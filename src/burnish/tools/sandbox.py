"""Run untrusted code with limits, and report how strong the isolation is.

    sandbox = Sandbox(SandboxLimits(cpu_s=5))
    ran = sandbox.run("print(6 * 7)")           # or: await sandbox.arun(...)
    ran.status, ran.stdout                      # ok, "42\\n"
    print(sandbox.probe())                      # strong, medium or weak, and why

The code runs in another process with an empty environment, no network, its own folder and hard
limits, under every isolation layer that the machine has. Before the first run the layers are
probed; if they are weak, nothing runs unless you said `allow_weak=True`. See docs/sandbox.md for what it
does not cover.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, TypeVar

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
        self._readable = tuple(_folder(path) for path in readable)
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
        plan = self._plan()
        with work_folder(plan) as work:
            spec = self._spec(plan, work, "program", code, files or {})
            run = Run(plan, spec, self._mounts, self.limits, stdin=_bytes(stdin), stop=stop)
            finished = run.finish()
        if not finished.is_clean:
            raise SandboxError(f"something of the run outlived it (layers: {plan})")
        return finished.ran

    async def arun(
        self, code: str, *, stdin: str = "", files: Mapping[str, str] | None = None
    ) -> Ran:
        """`run` from an event loop, at most `workers` at a time; a cancelled run is killed."""
        return await self._away(partial(self.run, code, stdin=stdin, files=files))

    def examine(self, exam: Exam, *, stop: threading.Event | None = None) -> Marks:
        """Test a candidate's functions; the tests run in another process than the candidate."""
        plan = self._plan()
        return examine(
            exam,
            plan,
            self._mounts,
            self.limits,
            partial(self._spec, plan),
            stop or threading.Event(),
        )

    async def aexamine(self, exam: Exam) -> Marks:
        """`examine` from an event loop; a cancelled one is killed."""
        return await self._away(partial(self.examine, exam))

    @cached_property
    def _mounts(self) -> Mounts:
        return interpreter_mounts(self._readable)

    def _plan(self) -> Plan:
        report = self.probe()
        if report.strength is Strength.WEAK and not self.allow_weak:
            raise UserError(
                f"the sandbox of this machine is {report.summary}. Enable user namespaces, Landlock "
                "or seccomp, install bubblewrap, or say allow_weak = true if you trust the code or "
                "run in a container that may be lost."
            )
        return report.plan

    def _spec(
        self, plan: Plan, work: str, role: str, code: str, files: Mapping[str, str]
    ) -> RunSpec:
        inner = {_inner(name): text for name, text in files.items()}
        paths = map(str, self._readable)
        return run_spec(plan, self._mounts, self.limits, work, role, code, inner, paths)

    async def _away(self, call: Callable[..., T]) -> T:
        """Make the call in a thread; when the caller is cancelled, the process is killed at once."""
        stop = threading.Event()
        try:
            return await wait_in_thread(partial(call, stop=stop), "sandbox", self.workers)
        finally:
            stop.set()


def _folder(path: str | Path) -> Path:
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise UserError(f"sandbox: readable folder '{path}' is not there; expected a folder.")
    return folder


def _inner(name: str) -> str:
    """A file name that stays inside the work folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise UserError(f"sandbox: file name '{name}' leaves the folder; expected a relative one.")
    return name


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


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


class MakeOrder(Protocol):
    """Fills in what every run of a sandbox has in common."""

    def __call__(self, work: str, role: str, code: str, files: Mapping[str, str]) -> RunSpec: ...


def examine(
    exam: Exam,
    plan: Plan,
    mounts: Mounts,
    limits: SandboxLimits,
    make_spec: MakeOrder,
    stop: threading.Event,
) -> Marks:
    """Run both processes to the end of the examination."""
    examiner_limits = replace(
        limits,
        # The candidate's clock may start later than the examiner's, and must end first.
        wall_s=START_S + limits.wall_s + EXAMINER_S,
        processes=1,
        output_kb=max(1024, limits.output_kb),
    )
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        wires = stack.enter_context(_wires())
        folders = [stack.enter_context(work_folder(plan)) for _ in range(2)]
        spec = make_spec(folders[0], "candidate", exam.code, {})
        spec = spec._replace(talk=(wires.calls[0], wires.answers[1]))
        candidate = Run(plan, spec, mounts, limits, stop=over)
        waiting = _Waiting(candidate)
        try:
            spec = make_spec(folders[1], "examiner", "", {})
            spec = spec._replace(
                bounds=examiner_limits.bounds(),
                talk=(wires.answers[0], wires.calls[1]),
                answer=wires.notes[1],
                tests=exam.tests,
                setup=exam.setup,
                entry_point=exam.entry_point,
                keep_going=exam.keep_going,
            )
            examiner = Run(plan, spec, mounts, examiner_limits, notes=wires.notes[0], stop=stop)
            wires.let_go()
            finished = examiner.finish()
        finally:
            over.set()
            waiting.join()
    return _marks(finished, waiting.outcome())


class _Waiting(threading.Thread):
    """The candidate's run, waited for while the examination goes on."""

    def __init__(self, run: Run) -> None:
        super().__init__(daemon=True)
        self.run_of_candidate = run
        self.finished: Finished | None = None
        self.error: SandboxError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.finished = self.run_of_candidate.finish()
        except Stopped:
            pass
        except SandboxError as error:
            self.error = error

    def outcome(self) -> Ran | None:
        """How it ended; None where it was ended because the examination was over."""
        if self.error is not None:
            raise self.error
        if self.finished is None:
            return None
        if not self.finished.is_clean:
            raise SandboxError("something of the candidate outlived its run")
        return self.finished.ran


@dataclass
class _Wires:
    """The pipes between candidate and examiner, and from the examiner to us."""

    calls: tuple[int, int]
    answers: tuple[int, int]
    notes: tuple[int, int]
    is_let_go: bool = False

    def let_go(self) -> None:
        """Close our copies, so that the end of one process is seen by the other.

        The end that notes are read from belongs to the examiner's run from now on.
        """
        self.is_let_go = True
        for end in (*self.calls, *self.answers, self.notes[1]):
            os.close(end)


@contextlib.contextmanager
def _wires() -> Iterator[_Wires]:
    wires = _Wires(os.pipe(), os.pipe(), os.pipe())
    try:
        yield wires
    finally:
        if not wires.is_let_go:
            wires.let_go()
            os.close(wires.notes[0])


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
    answered = any("answered" in line for line in lines)
    if not is_complete and not broken:
        why = _unfinished(finished.ran)
        if not answered:
            raise SandboxError(f"the examiner {why}")
        # Answers that keep the tests from ending are wrong answers, not trouble of ours.
        failures.append(Failure("the tests", f"with these answers they {why}", ""))
    passed, total = _counted(lines)
    return Marks(passed, total, tuple(failures), broken, is_complete, candidate)


def _counted(lines: list[dict[str, Any]]) -> tuple[int, int]:
    """How many asserts passed, and of how many.

    An error between two asserts counts by those that were not reached for it, else as one more.
    """
    expected = {(*one,) for line in lines for one in line.get("asserts", ())}
    held = {(*line["passed"],) for line in lines if "passed" in line}
    failed = {(*line["place"],) for line in lines if line.get("place")}
    asserts = {place for place in expected | held | failed if len(place) > 1}
    passed = held - failed
    lost = {source for source, *_ in asserts - passed}
    between = {source for source, *number in failed if not number and source not in lost}
    return len(passed), len(asserts) + len(between)


def _unfinished(ran: Ran) -> str:
    if ran.status is RunStatus.FAILED and ran.stderr:
        return f"did not end well: {ran.stderr.strip().splitlines()[-1][:200]}"
    return f"did not end: {ran}"
