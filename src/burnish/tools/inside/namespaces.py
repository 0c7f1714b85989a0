"""New user, process, network, IPC and mount namespaces, and a root made for it.

After `enter`, this process has left the host's network and, for its children, its process table;
it holds no rights outside. After `new_root`, it sees the interpreter's files read-only, three
devices and an empty work folder of bounded size. There is no /proc and no program to execute.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from . import kernel
from .landlock import DEVICES
from .run_spec import RunSpec

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
            _empty(f".{path}")
    limits = f"size={spec.bounds.disk_bytes},nr_inodes={spec.bounds.files + 2},mode=777"
    os.makedirs(f".{work}", 0o755, exist_ok=True)
    kernel.mount("work", f".{work}", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, limits)
    if not os.path.lexists("./tmp"):
        os.symlink(work, "./tmp")
    kernel.pivot_here()
    _make_read_only("/", recursive=False)
    os.chdir(work)


def _show(path: str, handle: int, is_folder: bool) -> None:
    """Bind one path of the host at the same place under the new root, read-only."""
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


def _empty(folder: str) -> None:
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    kernel.mount("hidden", folder, "tmpfs", flags, "size=4k,mode=755")


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
