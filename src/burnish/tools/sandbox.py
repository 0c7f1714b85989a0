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

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from burnish.errors import SandboxError, UserError
from burnish.tools.examine import Exam, Marks, examine
from burnish.tools.inside.run_spec import RunSpec
from burnish.tools.isolation import Layer, Mounts, Plan, chosen, interpreter_mounts
from burnish.tools.launch import run_spec, work_folder
from burnish.tools.limits import Ran, SandboxLimits
from burnish.tools.probe import Report, Strength, probe
from burnish.tools.process import Run
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
