"""Probe the isolation: real attempts to escape from the sandbox, watched from outside.

report = probe(frozenset(Layer), interpreter_sight())
report.strength, report.plan, report.findings
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from burnish.errors import SandboxError
from burnish.tools.inside.confine import KEEPERS
from burnish.tools.isolation import (
    EXTRAS,
    Layer,
    Limit,
    Mounts,
    Plan,
    RunStatus,
    SandboxLimits,
    bases,
)
from burnish.tools.process import Finished, Run, run_spec, work_folder
from burnish.tools.supervisor import ChildProcess

TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
LONGEST_SOCKET_PATH = 100
IPC_PRIVATE = IPC_RMID = 0


class Hold(StrEnum):
    """One thing that a sandbox must hold back."""

    NETWORK = "network"
    WRITE = "write"
    READ = "read"
    DISTURB = "disturb"
    WATCH = "watch"
    SURVIVE = "survive"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"


@dataclass(frozen=True)
class Finding:
    """One attempt."""

    hold: Hold
    is_held: bool
    detail: str


TRIAL = """
import bisect, decimal, hashlib, json, statistics
with open("note", "w") as file:
    file.write("written")
print(open("note").read(), hashlib.sha256(b"").hexdigest()[:4])
"""
"""Ordinary code: it must run under every isolation layer in use."""

ATTEMPTS = """
import json, sys
target = json.loads(sys.stdin.read())
got = {}

def attempt(name, action):
    try:
        got[name] = str(action())[:100]
    except BaseException as error:
        got.setdefault("_" + name, type(error).__name__)

def connect(family, kind, address):
    import socket
    with socket.socket(family, kind) as plug:
        plug.settimeout(1)
        plug.connect(address)
        plug.send(b"out")
    return "connected"

def datagram(address):
    import socket
    plug, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        plug.sendto(b"out", address)
    except OSError:
        plug.sendmsg([b"out"], [], 0, address)
    return "sent"

def trace():
    import ctypes
    result = ctypes.CDLL(None).ptrace(0x4206, target["victim"], 0, 0)
    if result != 0:
        raise OSError("refused")
    return "traced"

def fork_many():
    import os, time
    count = 0
    for _ in range(64):
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            os.setsid()
            try:
                os.fork()
            except OSError:
                pass
            time.sleep(30)
            os._exit(0)
        count += 1
    return count

def remove_segment():
    import ctypes
    if target["segment"] < 0 or ctypes.CDLL(None).shmctl(target["segment"], 0, None) != 0:
        raise OSError("refused")
    return "removed"

def full(write):
    # Bytes that can be written without waiting.
    total = 0
    try:
        while total <= target["most_kept"]:
            total += write(bytes(65536))
    except OSError:
        pass
    return total

def kept(fresh):
    # Bytes that the kernel keeps, outside the address space, for as many things as can be made.
    things, total = [], 0
    try:
        while total <= target["most_kept"]:
            writes, thing = fresh()
            things.append(thing)
            total += sum(map(full, writes))
    except OSError:
        pass
    return total

def memory_file():
    import os
    handle = os.memfd_create("kept")
    return [lambda data: os.write(handle, data)], os.fdopen(handle, "wb", buffering=0)

def stream_pair():
    import socket
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        except OSError:
            pass
    return [end.send for end in pair], pair

def large_pipe():
    import fcntl, os
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        fcntl.fcntl(writing, 1031, 1 << 20)
    except OSError:
        pass
    ends = os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "wb", buffering=0)
    return [lambda data: os.write(writing, data)], ends

def look():
    import os
    if not os.path.exists("/proc/%d/cmdline" % target["victim"]):
        raise OSError("nothing there")
    return "seen"

import os, resource, socket, signal
attempt("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", target["tcp"])))
attempt("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", target["udp"])))
attempt("unix", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + target["unix"]))
attempt("datagram", lambda: datagram(target["datagram"]))
attempt("abstract", lambda: datagram("\\0" + target["abstract"]))
attempt("read", lambda: open(target["secret"]).read())
attempt("write", lambda: open(target["folder"] + "/mark", "w").write("out"))
attempt("mode", lambda: os.chmod(target["secret"], 0o640))
attempt("time", lambda: os.utime(target["secret"], (1, 1)))
attempt("cut", lambda: os.truncate(target["writable"], 0))
attempt("segment", remove_segment)
attempt("signal", lambda: os.kill(target["victim"], signal.SIGCONT) or "signalled")
attempt("trace", trace)
attempt("limit", lambda: resource.prlimit(target["victim"], resource.RLIMIT_CORE, (0, 0)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, target["victim"], 7) or "changed")
attempt("look", look)
attempt("memory", lambda: len(bytearray(target["memory"])))
attempt("memory files", lambda: kept(memory_file))
attempt("socket buffers", lambda: kept(stream_pair))
attempt("pipes", lambda: kept(large_pipe))
attempt("forks", fork_many)
print(json.dumps(got))
"""

SCATTER = """
import os, time
for _ in range(4):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        os.setsid()
        try:
            os.fork()
        except OSError:
            pass
time.sleep(60)
"""
"""Processes in new sessions that still run when the time limit ends the run."""

FILL = """
total = count = 0
try:
    for count in range(1, 257):
        open(f"empty{count}", "w").close()
except OSError:
    pass
import os, time
time.sleep(0.2)
for index in range(1, count + 1):
    if os.path.exists(f"empty{index}"):
        os.unlink(f"empty{index}")
try:
    for index in range(16):
        with open(f"fill{index}", "wb", buffering=0) as file:
            for _ in range(4):
                total += file.write(bytes(1 << 20))
except OSError as error:
    pass
time.sleep(0.2)
print(total, count)
"""
"""Four times the files and sixteen times the bytes that are allowed."""

FILL_UNNAMED = """
import os, time
total, files = 0, []
try:
    for index in range(16):
        files.append(open("unnamed", "wb", buffering=0))
        os.unlink("unnamed")
        for _ in range(4):
            total += files[-1].write(bytes(1 << 20))
except OSError:
    pass
time.sleep(0.2)
print(total, 1)
"""
"""Sixteen times the bytes that are allowed, in files that no folder holds any more."""


KEPT_IN_KERNEL = ("memory files", "socket buffers", "pipes")
"""Attempts to keep data where the limit of the address space does not count it."""


class Outside:
    """Things on the host that a sandboxed process must not reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.secret = folder / "secret"
        self.secret.write_text("a secret of the host")
        self.secret.chmod(0o644)
        self.secret_time = self.secret.stat().st_mtime
        self.open_folder = folder / "open"
        self.open_folder.mkdir()
        self.open_folder.chmod(0o777)
        self.writable = folder / "writable"
        self.writable.write_text("not empty")
        self.writable.chmod(0o666)
        # The kernel takes about 100 characters as a socket's path, and TMPDIR may be longer.
        is_long = len(os.fsencode(folder / "datagram")) > LONGEST_SOCKET_PATH
        self.plugs = Path(tempfile.mkdtemp(dir="/tmp")) if is_long else folder
        self.plugs.chmod(0o755)
        name = f"burnish-probe-{folder.name}"
        is_linux = sys.platform == "linux"
        addresses: dict[str, tuple[int, int, Any]] = {
            "tcp": (socket.AF_INET, TCP, ("127.0.0.1", 0)),
            "udp": (socket.AF_INET, UDP, ("127.0.0.1", 0)),
            "unix": (socket.AF_UNIX, TCP, f"\0{name}" if is_linux else str(self.plugs / "plug")),
            "datagram": (socket.AF_UNIX, UDP, str(self.plugs / "datagram")),
            "abstract": (socket.AF_UNIX, UDP, f"\0{name}-d" if is_linux else str(self.plugs / "d")),
        }
        self.listeners: dict[str, socket.socket] = {}
        for key, (family, kind, address) in addresses.items():
            plug = self.listeners[key] = socket.socket(family, kind)
            plug.setblocking(False)
            plug.bind(address)
            if kind == TCP:
                plug.listen()
        (self.plugs / "datagram").chmod(0o777)
        # Memory that all processes of this user share; -1 where there is none.
        make = ctypes.CDLL(None).shmget if is_linux else lambda *_: -1
        self.segment = int(make(IPC_PRIVATE, 4096, 0o600))
        self.victim = ChildProcess(
            [sys.executable, "-S", "-c", "import time; time.sleep(60)"], env={}
        )
        self.target: dict[str, Any] = {
            "victim": self.victim.pid,
            "secret": str(self.secret),
            "folder": str(self.open_folder),
            "writable": str(self.writable),
            "tcp": self.listeners["tcp"].getsockname()[1],
            "udp": self.listeners["udp"].getsockname()[1],
            "unix": name,
            "datagram": str(self.plugs / "datagram"),
            "abstract": f"{name}-d",
            "segment": self.segment,
        }

    def findings(self, got: Mapping[str, str]) -> Iterator[Finding]:
        """What was reached, as the attempts say and as it looks from here."""

        def was_heard(plug: socket.socket) -> bool:
            with contextlib.suppress(BlockingIOError):
                plug.recv(16) if plug.type == UDP else plug.accept()[0].close()
                return True
            return False

        sockets = [n for n, plug in self.listeners.items() if n in got and was_heard(plug)]
        sockets += [name for name in ("tcp", "unix") if name in got and name not in sockets]
        status = self.secret.stat()
        changed = {
            "a file": (self.open_folder / "mark").exists(),
            "a file's mode": status.st_mode & 0o777 != 0o644,
            "a file's time": status.st_mtime != self.secret_time,
            "a file's length": not self.writable.stat().st_size,
        }
        written = [name for name, is_so in changed.items() if is_so]
        read = ["a file"] if "read" in got else []
        disturbed = [n for n in ("signal", "trace", "limit", "priority", "segment") if n in got]
        seen = ["the process table"] if "look" in got else []
        for hold, reached, otherwise in (
            (Hold.NETWORK, sockets, "no socket reached the host"),
            (Hold.WRITE, written, "nothing outside its folder could be written"),
            (Hold.READ, read, "nothing outside its folder could be read"),
            (Hold.DISTURB, disturbed, "no other process could be touched"),
            (Hold.WATCH, seen, "no other process could be seen"),
        ):
            words = f"reached: {', '.join(reached)}" if reached else otherwise
            yield Finding(hold, not reached, words)

    def close(self) -> None:
        for plug in self.listeners.values():
            plug.close()
        if self.plugs != self.folder:
            shutil.rmtree(self.plugs, ignore_errors=True)
        if self.segment >= 0:
            ctypes.CDLL(None).shmctl(self.segment, IPC_RMID, None)
        self.victim.kill()


@contextlib.contextmanager
def outside() -> Iterator[Outside]:
    with tempfile.TemporaryDirectory(prefix="burnish-probe-") as folder:
        things = Outside(Path(folder))
        try:
            yield things
        finally:
            things.close()


class Strength(StrEnum):
    """How much a sandbox holds back, as tried on this machine."""

    STRONG = "strong"
    """Every attempt was held."""
    MEDIUM = "medium"
    """Nothing outside can be changed or reached, but some of it can be seen."""
    WEAK = "weak"
    """Something outside can be changed or reached, or a limit does not hold."""


SIGHTS = frozenset({Hold.READ, Hold.WATCH})
"""What a medium sandbox may let through: looking, not touching."""


@dataclass(frozen=True)
class Report:
    """Strength of the isolation on this machine."""

    plan: Plan
    findings: tuple[Finding, ...]
    refused: tuple[str, ...]
    """Plans that were tried first and why they did not work."""

    @property
    def breaches(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_held]

    @property
    def strength(self) -> Strength:
        if not self.breaches:
            return Strength.STRONG
        only_sights = all(finding.hold in SIGHTS for finding in self.breaches)
        return Strength.MEDIUM if only_sights else Strength.WEAK

    def holds(self, hold: Hold) -> bool:
        return all(finding.is_held for finding in self.findings if finding.hold is hold)

    @property
    def summary(self) -> str:
        """One line: the strength, the layers, and every breach."""
        breaches = "; ".join(f"{breach.hold.value}: {breach.detail}" for breach in self.breaches)
        return f"{self.strength.value} (layers: {self.plan}){': ' if breaches else ''}{breaches}"

    def __str__(self) -> str:
        """For people: the strength, the layers, and every breach."""
        lines = [f"{self.strength.value} (layers: {self.plan})"]
        lines += [
            f"  {f.hold.value}: {'held' if f.is_held else 'OPEN'}, {f.detail}"
            for f in self.findings
        ]
        return "\n".join([*lines, *(f"  not available: {line}" for line in self.refused)])


LIMITS = SandboxLimits(
    cpu_s=5, wall_s=10, memory_mb=256, disk_mb=4, files=64, threads=4, output_kb=64
)

MOST_KEPT = 4
"""A limit is not held where the kernel keeps more than this part of it beside the address space."""


def probe(wanted: frozenset[Layer], mounts: Mounts, processes: int = 1) -> Report:
    """Find the strongest plan that works here, then try to get out of it."""
    plan, refused = find_plan(wanted, mounts)
    with outside() as things:
        limits = replace(LIMITS, processes=processes)
        memory = limits.memory_mb << 20
        target = {**things.target, "memory": memory, "most_kept": memory // MOST_KEPT}
        finished = _run(plan, mounts, ATTEMPTS, limits, json.dumps(target))
        try:
            got: dict[str, str] = json.loads(finished.ran.stdout)
        except ValueError:
            words = finished.ran.stderr.strip().splitlines() or [str(finished.ran)]
            why = f"the probe of the sandbox did not end: {words[-1][:200]}"
            raise SandboxError(why) from None
        findings = [*things.findings(got), *_limit_findings(got, limits)]
    is_clean = finished.is_clean
    if is_clean and int(got.get("forks", "0")):
        is_clean = _run(plan, mounts, SCATTER, replace(limits, wall_s=0.5)).is_clean
    said = "nothing outlived the run" if is_clean else "a process outlived the run"
    findings.append(Finding(Hold.SURVIVE, is_clean, said))
    findings.append(_disk(plan, mounts))
    return Report(plan, tuple(findings), refused)


def find_plan(wanted: frozenset[Layer], mounts: Mounts) -> tuple[Plan, tuple[str, ...]]:
    """The strongest plan that runs ordinary code, and why stronger ones did not."""
    refused: list[str] = []
    last = SandboxError("no plan was tried")
    for base in bases(wanted):
        extras = wanted & EXTRAS if sys.platform == "linux" else frozenset()
        if os.name == "posix" and os.geteuid() != 0:
            extras -= {Layer.NOBODY}
        full = base.with_layers(extras)
        trouble = _trouble(full, mounts)
        if not trouble:
            return full, tuple(refused)
        last = SandboxError(trouble)
        refused.append(trouble)
        plan = base
        if not extras or _trouble(plan, mounts):
            continue
        for layer in sorted(extras):
            more = plan.with_layers({layer})
            plan = plan if _trouble(more, mounts) else more
        return plan, tuple(refused)
    raise last


def _trouble(plan: Plan, mounts: Mounts) -> str:
    """Why ordinary code does not run under a plan, or an empty text."""
    try:
        finished = _run(plan, mounts, TRIAL, LIMITS)
    except SandboxError as error:
        return str(error)
    if finished.ran.stdout == "written e3b0\n":
        return ""
    words = finished.ran.stderr.strip().splitlines() or [str(finished.ran)]
    return f"ordinary code fails under {plan}: {words[-1][:200]}"


def _run(plan: Plan, mounts: Mounts, code: str, limits: SandboxLimits, stdin: str = "") -> Finished:
    with work_folder(plan) as work:
        spec = run_spec(plan, mounts, limits, work, "program", code)
        return Run(plan, spec, mounts, limits, stdin=stdin.encode()).finish()


def _limit_findings(got: dict[str, str], limits: SandboxLimits) -> Iterator[Finding]:
    """Limits, as the attempts met them."""
    most_kept = (limits.memory_mb << 20) // MOST_KEPT
    taken = [f"{got['memory']} bytes"] if "memory" in got else []
    kept = {name: int(got[name]) for name in KEPT_IN_KERNEL if name in got}
    taken += [f"{size} bytes in {name}" for name, size in kept.items() if size > most_kept]
    said = f"{', '.join(taken)} could be taken" if taken else "the limit held"
    yield Finding(Hold.MEMORY, not taken, said)
    forks, most = int(got.get("forks", "0")), limits.processes + limits.threads + KEEPERS
    yield Finding(Hold.PROCESSES, forks <= most, f"{forks} processes could be started")


def _disk(plan: Plan, mounts: Mounts) -> Finding:
    """Write many times the limit, into files with names and without."""
    said = ""
    for attempt in (FILL, FILL_UNNAMED):
        ran = _run(plan, mounts, attempt, LIMITS).ran
        if ran.killed_by is Limit.DISK:
            said = said or "killed when it wrote more than it may"
            continue
        if ran.status is not RunStatus.OK:
            return Finding(Hold.DISK, False, f"the attempt to fill it {ran}")
        size, count = map(int, ran.stdout.split())
        written = f"{size >> 20} MB and {count} files could be written"
        if size >> 20 > LIMITS.disk_mb or count > LIMITS.files + 2:
            return Finding(Hold.DISK, False, written)
        said = said or written
    return Finding(Hold.DISK, True, said)
