"""The last steps before foreign code runs: limits, identity, Landlock, seccomp, descriptors."""

from __future__ import annotations

import os
import resource
import sys
from itertools import pairwise

from . import kernel, landlock, seccomp
from .namespaces import NOBODY
from .run_spec import Bounds, RunSpec

KEEPERS = 3
"""Processes of ours that share the count of processes in a user namespace."""

TIMERS = 64
"""Timers and queued signals, which the kernel keeps in its own memory."""


def confine(spec: RunSpec) -> None:
    """Put on every ordered layer in this process; raises before any code runs if one fails."""
    os.setsid()
    layers = spec.layers
    os.chdir(spec.work)
    set_limits(spec.bounds, _most_tasks(spec))
    if sys.platform != "linux":
        return
    if "nobody" in layers and not ("namespaces" in layers and spec.user_namespace):
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # for the parent, which counts what is written
    kernel.drop_capabilities()
    kernel.die_with_parent()
    if "landlock" in layers:
        hidden = () if "mount" in layers else spec.hidden
        landlock.restrict(spec.readable, hidden, spec.work)
    if "seccomp" in layers:
        may_fork = spec.bounds.processes > 1
        may_signal = may_fork and spec.has_own_table
        seccomp.install(
            os.getpid(),
            may_fork=may_fork,
            may_signal=may_signal,
            may_pair=spec.bounds.socket_pairs,
            has_own_root="mount" in layers or "bubblewrap" in layers,
        )


def set_limits(bounds: Bounds, most_tasks: int) -> None:
    """Resource limits; a limit that is already lower stays."""
    wanted = {
        "CORE": 0,
        "CPU": bounds.cpu_s,
        "FSIZE": bounds.disk_bytes,
        "NOFILE": bounds.open_files,
        "NPROC": most_tasks,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "SIGPENDING": TIMERS,
        "RTPRIO": 0,
        "NICE": 0,
    }
    if sys.platform != "darwin":  # macOS refuses a lower address-space limit
        wanted["AS"] = bounds.memory_bytes
    for name, bound in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        top = bound + 1 if name == "CPU" else bound  # SIGXCPU first, then SIGKILL
        if hard != resource.RLIM_INFINITY:
            bound, top = min(bound, hard), min(top, hard)
        resource.setrlimit(kind, (bound, top))


def keep_only(wanted: list[int]) -> None:
    """Close every descriptor above 2 that is not wanted."""
    edges = [2, *sorted(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0] + 4096]
    for low, high in pairwise(edges):
        os.closerange(low + 1, high)


def _most_tasks(spec: RunSpec) -> int:
    """The kernel counts a user's tasks: all of them, or those of the current namespace."""
    own = spec.bounds.processes + spec.bounds.threads
    if "namespaces" in spec.layers and spec.user_namespace:
        return own + KEEPERS
    uid = NOBODY if "nobody" in spec.layers else os.getuid()
    return own + KEEPERS + _tasks_of(uid)


def _tasks_of(uid: int) -> int:
    """Threads of all processes of a user, as far as they can be seen."""
    count = 0
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no table to count in
        return 0
    for name in names:
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it has just ended
            continue
    return count
