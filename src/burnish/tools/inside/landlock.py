"""Landlock: what this process may read and write, by path, decided by the kernel.

Rules only add, so a folder with a hidden folder inside is granted entry by entry.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterator, Sequence

from . import kernel

CREATE, ADD, RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 1 << 1, 1 << 2, 1 << 3
ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Rights that make sense for a single file: execute, write, read, truncate, device control."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def version() -> int:
    """The kernel's Landlock version; raises where there is none."""
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
