"""The last steps before foreign code runs: limits, identity, Landlock, seccomp, descriptors."""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from . import kernel, seccomp
from .run_spec import Bounds, RunSpec

CREATE, ADD, RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 1 << 1, 1 << 2, 1 << 3
ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Rights that make sense for a single file: execute, write, read, truncate, device control."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def version() -> int:
    return kernel.syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))


def handled_rights(version: int) -> int:
    """Every file right that this version can refuse."""
    return (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1


def restrict(readable: Sequence[str], hidden: Sequence[str], work: str) -> None:
    """Grant reading under `readable` but for `hidden`, everything but execution under `work`."""
    known = version()
    everything = handled_rights(known)
    attributes = struct.pack("<QQQ", everything, 3 if known >= 4 else 0, 3 if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = kernel.syscall(CREATE, attributes[:size], ctypes.c_size_t(size), ctypes.c_uint32(0))
    reading = READ_FILE | READ_FOLDER
    for path in granted(readable, set(hidden)):
        _grant(ruleset, path, reading)
    for path in DEVICES:
        _grant(ruleset, path, reading | WRITE_FILE)
    _grant(ruleset, work, everything & ~EXECUTE)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.syscall(RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def granted(readable: Sequence[str], hidden: set[str]) -> Iterator[str]:
    """The readable paths, a folder around a hidden one replaced by its other entries.

    A link is no grant: what it points to must be readable in its own right.
    """
    for path in readable:
        if path in hidden or os.path.islink(path):
            continue
        if any(name.startswith(path.rstrip("/") + "/") for name in hidden):
            entries = [os.path.join(path, name) for name in os.listdir(path)]
            yield from granted(entries, hidden)
        else:
            yield path


def _grant(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not there, so there is nothing to grant
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= ON_FILES
        rule = struct.pack("<Qi", rights, handle)
        kernel.syscall(ADD, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(handle)


NOBODY = 65534

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
STAGES = ("/tmp", "/mnt", "/usr")
"""Folders over which the new root can be built; in this namespace nobody else looks at them."""


class Held(NamedTuple):
    """A readable path, kept by descriptor so that it is found after every change of rights."""

    path: str
    handle: int
    is_folder: bool


def enter(*, user: bool, as_nobody: bool, mount: bool) -> None:
    """Leave the host's namespaces; what is forked next is process 1 of the new ones."""
    others = kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if mount:
        others |= kernel.CLONE_NEWNS
    if not user:
        kernel.unshare(others)
        return
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and as_nobody:
        _unshare_mapped(others, NOBODY, NOBODY)
        return
    kernel.unshare(kernel.CLONE_NEWUSER | others)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")


def become_inner_root() -> None:
    """Take the only identity that the namespace knows: root inside, nobody outside."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def hold(paths: Sequence[str]) -> list[Held]:
    """Open what will be readable while this process may still find it."""
    held = []
    for path in paths:
        if os.path.exists(path):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            held.append(Held(path, handle, os.path.isdir(path)))
    return held


def new_root(held: Sequence[Held], spec: RunSpec) -> None:
    """Build a root of the held paths and the work folder, and move into it for good."""
    work = spec.work
    stage = next(folder for folder in STAGES if os.path.isdir(folder))
    kernel.mount("none", "/", flags=MS_REC | MS_PRIVATE)
    kernel.mount("root", stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    os.chdir(stage)
    for path, handle, is_folder in held:
        _show(path, handle, is_folder)
    for path, target in spec.links:
        if not os.path.lexists(f".{path}"):
            os.makedirs(os.path.dirname(f".{path}"), 0o755, exist_ok=True)
            os.symlink(target, f".{path}")
    for path in spec.hidden:
        if os.path.isdir(f".{path}"):
            flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
            kernel.mount("hidden", f".{path}", "tmpfs", flags, "size=4k,mode=755")
    limits = f"size={spec.bounds.disk_bytes},nr_inodes={spec.bounds.files + 2},mode=777"
    os.makedirs(f".{work}", 0o755, exist_ok=True)
    kernel.mount("work", f".{work}", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, limits)
    if not os.path.lexists("./tmp"):
        os.symlink(work, "./tmp")
    kernel.pivot_here()
    _make_read_only("/", recursive=False)
    os.chdir(work)


def _show(path: str, handle: int, is_folder: bool) -> None:
    target = f".{path}"
    if is_folder:
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(f"/proc/self/fd/{handle}", target, flags=MS_BIND | MS_REC)
    if path not in DEVICES:
        _make_read_only(target, recursive=True)
    os.close(handle)


def _make_read_only(target: str, *, recursive: bool) -> None:
    wanted = struct.pack("<QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    try:
        kernel.syscall(
            MOUNT_SETATTR,
            ctypes.c_int(AT_FDCWD),
            target.encode(),
            ctypes.c_uint(AT_RECURSIVE if recursive else 0),
            wanted,
            ctypes.c_size_t(len(wanted)),
        )
    except kernel.KernelRefusal as refusal:
        if refusal.errno != 38:
            raise
        # Before Linux 5.12: flags that the host has locked must be named again.
        locked = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | 1024 | 2048)
        kernel.mount(
            "none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | locked
        )


def _unshare_mapped(others: int, uid: int, gid: int) -> None:
    """Unshare with a helper outside, which alone may map root inside to another user outside."""
    ready = os.pipe()
    mother = os.getpid()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.read(ready[0], 1)
            _write(f"/proc/{mother}/uid_map", f"0 {uid} 1")
            _write(f"/proc/{mother}/gid_map", f"0 {gid} 1")
            code = 0
        finally:
            os._exit(code)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | others)
    finally:
        os.write(ready[1], b"x")
        _, status = os.waitpid(helper, 0)
        for end in ready:
            os.close(end)
    if status:
        raise kernel.KernelRefusal(1, "user namespace: the map of users was refused")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


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
        restrict(spec.readable, hidden, spec.work)
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
