"""Start one sandboxed process: its folder, its command line, its pipes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import SandboxError
from burnish.tools.inside.confine import KEEPERS
from burnish.tools.inside.descend import below
from burnish.tools.inside.folders import remove
from burnish.tools.inside.namespaces import NOBODY
from burnish.tools.inside.run_spec import RunSpec
from burnish.tools.isolation import Layer, Mounts, Plan, bubblewrap
from burnish.tools.limits import SandboxLimits
from burnish.tools.supervisor import ChildProcess

WORK = "/sandbox"
"""The work folder of a run that has its own root."""

SCRIPT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from inside.entry import main; main(*map(int, sys.argv[2:]))"
)


@dataclass(frozen=True)
class Started:
    """A process and our ends of its pipes."""

    process: ChildProcess
    stdin: int
    spec: int
    stdout: int
    stderr: int
    report: int


@contextlib.contextmanager
def work_folder(plan: Plan) -> Iterator[str]:
    """A folder for one run; on the host's disk only where the run has no mount namespace."""
    if plan.has_own_root:
        yield WORK
        return
    folder = os.path.realpath(tempfile.mkdtemp(prefix="burnish-sandbox-"))
    try:
        if Layer.NOBODY in plan.layers:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        try:
            remove(folder)
        except OSError as error:
            raise SandboxError(f"the folder of a run cannot be removed: {error}") from error


def run_spec(
    plan: Plan,
    mounts: Mounts,
    limits: SandboxLimits,
    work: str,
    role: str,
    code: str,
    files: Mapping[str, str] | None = None,
    import_paths: Iterable[str] = (),
) -> RunSpec:
    """One run under a plan; `files` are put into its work folder."""
    return RunSpec(
        role=role,
        code=code,
        bounds=limits.bounds(),
        layers=tuple(layer.value for layer in plan.layers),
        user_namespace=plan.user_namespace,
        readable=mounts.readable,
        hidden=mounts.hidden,
        links=mounts.links,
        import_paths=tuple(import_paths),
        work=work,
        files=tuple((files or {}).items()),
    )


def start(plan: Plan, spec: RunSpec, mounts: Mounts) -> Started:
    """Start the process; it waits for its spec. `SandboxError` where it cannot be started."""
    pipes = {name: os.pipe() for name in ("stdin", "spec", "stdout", "stderr", "report")}
    theirs = {name: ends[name not in ("stdin", "spec")] for name, ends in pipes.items()}
    ours = {name: ends[name in ("stdin", "spec")] for name, ends in pipes.items()}
    passed = [*(spec.talk or ()), *(() if spec.answer is None else (spec.answer,))]
    try:
        process = ChildProcess(
            command(plan, spec, mounts, theirs["spec"], theirs["report"]),
            stdin=theirs["stdin"],
            stdout=theirs["stdout"],
            stderr=theirs["stderr"],
            pass_fds=(theirs["spec"], theirs["report"], *passed),
            env={"PATH": "", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
            cwd="/",
        )
    except OSError as error:
        for end in ours.values():
            os.close(end)
        raise SandboxError(f"the sandboxed process cannot be started: {error}") from error
    finally:
        for end in theirs.values():
            os.close(end)
    return Started(process, **ours)


def command(plan: Plan, spec: RunSpec, mounts: Mounts, spec_end: int, report_end: int) -> list[str]:
    """The command line: a bare interpreter, inside bwrap where that is the plan.

    The hash seed is fixed and nothing of the user's environment is read: the same code runs alike.
    """
    here = str(Path(__file__).parent)
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    python = [interpreter, "-s", "-P", "-S", "-X", "utf8", "-c", SCRIPT, here]
    python += [str(spec_end), str(report_end)]
    program = bubblewrap()
    if Layer.BUBBLEWRAP not in plan.layers or program is None:
        return python
    words = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    for path in [*mounts.readable, interpreter, os.path.join(here, "inside")]:
        words += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
    for link, target in mounts.links:
        words += ["--symlink", target, link]
    for path in mounts.hidden:
        words += ["--tmpfs", path, "--remount-ro", path]
    words += ["--bind", spec.work, spec.work, "--remount-ro", "/"]
    return [*words, "--chdir", spec.work, "--", *python]


def is_too_full(spec: RunSpec, process: int) -> bool:
    """Whether a run has more on the host's disk than it may: in its folder, or without a name."""
    size = count = 0
    folders = [spec.work]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return True  # deeper than any path: nothing honest is
            continue  # it has just been removed, or locked by the code itself
        count += len(entries)
        for entry in entries:
            with contextlib.suppress(OSError):  # it has just been removed
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                size += entry.stat(follow_symlinks=False).st_blocks * 512
        if size > spec.bounds.disk_bytes or count > spec.bounds.files:
            return True
    with _eyes_of_nobody(spec):
        unnamed = _unnamed_bytes(spec, below(process))
    return size + unnamed > spec.bounds.disk_bytes


def has_too_many_tasks(spec: RunSpec, process: int) -> bool:
    """Whether a run has more threads than it may, where the kernel does not count them: as root."""
    count = 0
    for pid in below(process):
        with contextlib.suppress(OSError):  # it has just ended
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count > spec.bounds.processes + spec.bounds.threads + KEEPERS


@contextlib.contextmanager
def _eyes_of_nobody(spec: RunSpec) -> Iterator[None]:
    """Look at files as the user nobody: a container's root may not look into others' processes.

    The change is this thread's own, and only for file systems.
    """
    if "nobody" not in spec.layers or "namespaces" in spec.layers:
        yield
        return
    library = ctypes.CDLL(None)
    library.setfsgid(NOBODY)
    library.setfsuid(NOBODY)
    try:
        yield
    finally:
        library.setfsuid(os.geteuid())
        library.setfsgid(os.getegid())


def _unnamed_bytes(spec: RunSpec, pids: Iterable[int]) -> float:
    """Bytes of files that were removed but are still open, or mapped (then without a known size)."""
    sizes: dict[int, int] = {}
    mapped: set[int] = set()
    try:
        disk = os.stat(spec.work).st_dev
    except OSError:  # nothing honest removes its own folder
        return math.inf
    for pid in pids:
        # It may have ended, or belong to a user whose files this one may not look at.
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # it has just been closed
                    status = os.stat(f"/proc/{pid}/fd/{name}")
                    is_there = stat.S_ISREG(status.st_mode) and status.st_dev == disk
                    if is_there and not status.st_nlink:
                        sizes[status.st_ino] = status.st_blocks * 512
            with open(f"/proc/{pid}/maps") as file:
                gone = [line.split(maxsplit=5) for line in file if line.endswith(" (deleted)\n")]
            mapped |= {int(parts[4]) for parts in gone if parts[5].startswith(spec.work)}
    # Python's own `mmap` keeps the file open. Who closes it hides how large it is.
    return math.inf if mapped - set(sizes) else sum(sizes.values())
