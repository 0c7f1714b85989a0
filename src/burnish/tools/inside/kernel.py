"""Calls to the Linux kernel that Python 3.11 has no function for, through ctypes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

_library = ctypes.CDLL(None, use_errno=True)

MACHINE = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}.get(
    os.uname().machine.lower(), ""
)
"""The two architectures whose call numbers are known here, or an empty text."""


class KernelRefusal(OSError):
    """The kernel said no to a step that a layer needs."""


def syscall(number: int, *arguments: object) -> int:
    return _checked(_library.syscall(ctypes.c_long(number), *arguments), f"system call {number}")


def prctl(option: int, argument: int | ctypes.c_void_p = 0, more: object = 0) -> None:
    value = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    extra = ctypes.c_ulong(more) if isinstance(more, int) else more
    zero = ctypes.c_ulong(0)
    _checked(_library.prctl(option, value, extra, zero, zero), f"prctl {option}")


def unshare(flags: int) -> None:
    _checked(_library.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    done = _library.mount(
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _checked(done, f"mount on {target}")


def pivot_here() -> None:
    """Make the working folder the root, and let go of the old one."""
    _checked(_library.pivot_root(b".", b"."), "pivot_root")
    _checked(_library.umount2(b".", 2), "unmount the old root")


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when the thread that made it ends."""
    prctl(PR_SET_PDEATHSIG, int(by))


def run_leashed(parent: int, command: list[str]) -> None:
    """Become a program that the kernel kills when the process that started it is gone.

    A run that is killed in the middle of an episode then leaves no program behind. On systems
    without `prctl` the program just starts.
    """
    if hasattr(_library, "prctl"):
        die_with_parent()
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")


def drop_capabilities() -> None:
    """Give up every capability for good; nothing executed later regains one."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except KernelRefusal:  # past the last one, or nothing to drop without CAP_SETPCAP
            break
    header = (ctypes.c_uint32 * 2)(0x2008_0522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_library.capset(header, nothing), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise KernelRefusal(number, f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    run_leashed(int(sys.argv[1]), sys.argv[2:])
