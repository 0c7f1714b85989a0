"""Isolation layers this machine offers for a process, and what stays readable inside them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from burnish.boundary import Count, Positive, PositiveInt, Settings
from burnish.errors import UserError, did_you_mean
from burnish.tools.inside.confine import DEVICES
from burnish.tools.inside.run_spec import Bounds


class Layer(StrEnum):
    """One isolation layer. Resource limits, an empty environment and the kill always apply."""

    NAMESPACES = "namespaces"
    """Own user, process, network, IPC and host-name namespaces."""
    MOUNT = "mount"
    """A new root: the interpreter read-only, a work folder of bounded size. Needs namespaces."""
    NOBODY = "nobody"
    """Where burnish runs as root: the code has the rights of the user nobody."""
    LANDLOCK = "landlock"
    """The kernel refuses paths outside the work folder and the interpreter."""
    SECCOMP = "seccomp"
    """The kernel refuses sockets, new processes and other calls that plain code does not need."""
    BUBBLEWRAP = "bubblewrap"
    """The program bwrap in place of namespaces and mount."""


@dataclass(frozen=True)
class Plan:
    layers: frozenset[Layer]
    user_namespace: bool = True
    """False where root may make the other namespaces but no user namespace."""

    @property
    def has_own_root(self) -> bool:
        """Whether the work folder is a separate file system with a size limit."""
        return Layer.MOUNT in self.layers

    @property
    def has_uncounted_threads(self) -> bool:
        """Whether the kernel lets the threads of a run pass uncounted, because they are root's."""
        has_other_user = Layer.NOBODY in self.layers or (
            Layer.NAMESPACES in self.layers and self.user_namespace
        )
        return os.geteuid() == 0 and Layer.SECCOMP in self.layers and not has_other_user

    def with_layers(self, more: Iterable[Layer]) -> Plan:
        return replace(self, layers=self.layers | frozenset(more))

    def __str__(self) -> str:
        return ", ".join(layer.value for layer in Layer if layer in self.layers) or "limits only"


def chosen(names: Iterable[Layer | str]) -> frozenset[Layer]:
    """Layers by name; an unknown one is the user's mistake."""
    known = [layer.value for layer in Layer]
    found = set()
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise UserError(f"unknown sandbox layer '{name}'; expected some of {known}.{near}")
        found.add(Layer(name))
    if Layer.MOUNT in found and Layer.NAMESPACES not in found:
        raise UserError("sandbox layer 'mount' needs 'namespaces'; add it or leave mount out.")
    if Layer.BUBBLEWRAP in found and Layer.NAMESPACES in found:
        raise UserError("sandbox layers 'bubblewrap' and 'namespaces' exclude each other.")
    return frozenset(found)


EXTRAS = frozenset({Layer.NOBODY, Layer.LANDLOCK, Layer.SECCOMP})
"""Layers that a process puts on itself, in any combination."""


def bases(names: frozenset[Layer]) -> list[Plan]:
    """What a process is started in, best first; the extras come on top."""
    if sys.platform != "linux":
        return [Plan(frozenset())]
    plans: list[Plan] = []
    both = names & {Layer.NAMESPACES, Layer.MOUNT}
    if Layer.NAMESPACES in names:
        plans += _entered(both)
    if Layer.BUBBLEWRAP in names and bubblewrap():
        plans.append(Plan(frozenset({Layer.BUBBLEWRAP})))
    if Layer.MOUNT in both:
        plans += _entered(frozenset({Layer.NAMESPACES}))
    return [*plans, Plan(frozenset())]


def _entered(layers: frozenset[Layer]) -> list[Plan]:
    """With a user namespace; for root also without, where those are forbidden."""
    plans = [Plan(layers)]
    return [*plans, Plan(layers, user_namespace=False)] if os.geteuid() == 0 else plans


def bubblewrap() -> str | None:
    return shutil.which("bwrap")


@dataclass(frozen=True)
class Mounts:
    """What of the host's files the code can read."""

    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Other names of readable paths: the link and what it points to."""


def interpreter_mounts(more: Iterable[Path] = ()) -> Mounts:
    """The standard library, the system's shared libraries, and `more`; no installed packages."""
    wanted = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    wanted += [sysconfig.get_config_var("LIBDIR") or "", "/lib", "/lib64", "/usr/lib", "/usr/lib64"]
    wanted += ["/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo", *DEVICES]
    own = [str(path.resolve()) for path in more]
    there = [path for path in wanted if path and os.path.exists(path)]
    paths = {os.path.realpath(path) for path in there}
    top = sorted(path for path in paths if not any(_is_under(path, other) for other in paths))
    folders = [Path(path) for path in top if os.path.isdir(path)]
    packages = ("site-packages", "dist-packages")
    patterns = [f"{place}{name}" for place in ("", "python3*/") for name in packages]
    found = [str(hit) for folder in folders for name in patterns for hit in folder.glob(name)]
    asked = [path for path in found if any(path == o or _is_under(o, path) for o in own)]
    links = [(path, os.path.realpath(path)) for path in there if os.path.realpath(path) != path]
    return Mounts(
        readable=(*top, *(path for path in own if path not in top)),
        hidden=tuple(sorted(set(found) - set(asked))),
        links=tuple(dict.fromkeys(links)),
    )


def _is_under(path: str, other: str) -> bool:
    return path != other and path.startswith(other.rstrip("/") + "/")


class SandboxLimits(Settings, frozen=True):
    """Limits of one run. Every one is a ceiling; none is a promise."""

    cpu_s: Positive = 10.0
    """Processor seconds of each process; rounded up to whole ones."""
    wall_s: Positive = 15.0
    """Seconds on the clock from the moment the code starts."""
    memory_mb: Annotated[int, Meta(ge=64, le=1 << 30)] = 512
    """Address space of each process, the interpreter's own 30 MB included."""
    disk_mb: PositiveInt = 16
    """All that is written to the work folder."""
    files: PositiveInt = 256
    """Files and folders in the work folder."""
    processes: PositiveInt = 1
    """Processes at one time, the first included; 1 forbids to start others."""
    threads: Count = 16
    """Threads beside the processes."""
    open_files: Annotated[int, Meta(ge=16, le=1 << 20)] = 64
    output_kb: PositiveInt = 1024
    """What is kept of stdout and of stderr; a run that prints more is killed."""

    def bounds(self) -> Bounds:
        return Bounds(
            cpu_s=math.ceil(self.cpu_s),
            memory_bytes=self.memory_mb << 20,
            disk_bytes=self.disk_mb << 20,
            files=self.files,
            processes=self.processes,
            threads=self.threads,
            open_files=self.open_files,
            socket_pairs=2 * self.open_files * _socket_buffer() <= self.memory_mb << 20,
        )


def _socket_buffer() -> float:
    """Bytes that the kernel keeps for one socket; infinite where that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    return math.inf


class RunStatus(StrEnum):
    """How a run of foreign code ended; none of these is trouble of the sandbox itself."""

    OK = "ok"
    """It ended by itself with exit code 0. What it printed is still only its own word."""
    FAILED = "failed"
    """It ended by itself with another exit code."""
    CRASHED = "crashed"
    """A signal ended it: a segmentation fault, an abort."""
    KILLED = "killed"
    """It reached a limit; `killed_by` says which."""


class Limit(StrEnum):
    """The limit that ended a run."""

    CPU = "cpu"
    """Processor seconds."""
    WALL = "wall"
    """Seconds on the clock."""
    OUTPUT = "output"
    """It printed too much."""
    DISK = "disk"
    """It wrote too much or too many files (watched where the folder's file system has no limit)."""
    THREADS = "threads"
    """It started too many threads (watched where it runs as root, whose threads the kernel does not count)."""


class Ran(NamedTuple):
    """What came of one run. Texts are the run's own: data, never instructions."""

    stdout: str
    stderr: str
    status: RunStatus
    exit_code: int | None
    """The exit code, minus the signal's number, or None where it was killed."""
    seconds: float
    """Seconds on the clock, from the start of the code."""
    killed_by: Limit | None = None
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    def __str__(self) -> str:
        if self.killed_by is not None:
            return f"killed by the {self.killed_by.value} limit after {self.seconds:.1f} s"
        if self.status is RunStatus.CRASHED:
            return f"ended by signal {-(self.exit_code or 0)}"
        return f"ended with exit code {self.exit_code}"
