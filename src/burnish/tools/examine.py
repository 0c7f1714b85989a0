"""Test untrusted functions: the candidate in one sandbox, its examiner in another.

    exam = Exam(code="def add(a, b): return a + b", tests=("assert add(1, 2) == 3",))
    marks = sandbox.examine(exam)
    marks.passed, marks.failures

Candidate and examiner share two pipes and nothing else. Calls and answers are plain data, so the
candidate cannot read the expected values, patch the comparison, return an object that equals
everything, or report its own verdict.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from burnish.errors import SandboxError
from burnish.tools.inside.run_spec import RunSpec
from burnish.tools.isolation import Mounts, Plan
from burnish.tools.launch import work_folder
from burnish.tools.limits import Ran, RunStatus, SandboxLimits
from burnish.tools.process import START_S, Finished, Run, Stopped

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
    failures: tuple[Failure, ...]
    broken: str
    """Why the tests themselves could not be run; empty where they could."""
    is_complete: bool
    """Whether the tests ran to their end."""
    candidate: Ran | None
    """How the candidate's process ended; None where it was still waiting for calls."""

    @property
    def total(self) -> int:
        return self.passed + len(self.failures)


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
    passed = sum("passed" in line for line in lines)
    return Marks(passed, tuple(failures), broken, is_complete, candidate)


def _unfinished(ran: Ran) -> str:
    if ran.status is RunStatus.FAILED and ran.stderr:
        return f"did not end well: {ran.stderr.strip().splitlines()[-1][:200]}"
    return f"did not end: {ran}"
