"""End everything that was started below a process, where no namespace does it for us.

The process at the top must be the subreaper of the rest: orphans then become its children, so
whatever they do (another session, another group, a parent that ends) they stay below it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from typing import NamedTuple


class Entry(NamedTuple):
    parent: int
    group: int
    is_zombie: bool


def end_below(root: int, *, patience_s: float = 10.0) -> bool:
    """Kill all descendants of a process; True when none is left.

    Group by group: a signal to a group reaches also those that are just being forked, so a
    fork bomb cannot outrun it.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        table = _table()
        mine = table[root].group if root in table else -1
        below = {pid for pid in _below(root, table) if not table[pid].is_zombie}
        if not below:
            return True
        for group in {table[pid].group for pid in below} - {mine, 0, 1, os.getpgrp()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return False


def end_carrying(word: bytes, *, rounds: int = 5) -> None:
    """Kill every process whose environment holds a secret word, also one that left its family.

    Only where the kernel shows environments (Linux). What changes its own cannot be found so.
    """
    for _ in range(rounds):
        found = []
        for pid in _table():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if pid != os.getpid() and word in file.read():
                    found.append(pid)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def below(root: int) -> set[int]:
    """All descendants of a process, from the kernel's lists of children where it keeps them."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    new = set(map(int, file.read().split())) - found
                found |= new
                waiting += new
        except FileNotFoundError:  # it has just ended, or the kernel keeps no such lists
            if not os.path.exists("/proc/thread-self/children"):
                return _below(root, _table())
        except OSError:  # it has just ended
            continue
    return found


def _below(root: int, table: dict[int, Entry]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), []) if pid not in found]
        found.update(new)
        waiting += new
    return found


def _table() -> dict[int, Entry]:
    table: dict[int, Entry] = {}
    try:
        names = os.listdir("/proc")
    except OSError:  # a system without one; there is nothing to look through
        return table
    for name in names:
        # A process that has just ended has no line any more.
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{name}/stat") as file:
                state, parent, group = file.read().rpartition(")")[2].split()[:3]
            table[int(name)] = Entry(int(parent), int(group), state in "ZX")
    return table


def remove(folder: str) -> None:
    """Remove a folder whose content is hostile, however deep: links are never followed.

    Folders inside are moved to the top before they are emptied, so no path grows and nothing
    recurs. A folder that the code has replaced by something else is not entered.
    """
    if os.path.islink(folder) or not os.path.isdir(folder):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder)
        return
    fresh = itertools.count()
    waiting = [folder]
    while waiting:
        current = waiting[-1]
        os.chmod(current, 0o700)
        inner = []
        for entry in list(os.scandir(current)):
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
            else:
                os.unlink(entry.path)
        if not inner:
            waiting.pop()
            os.rmdir(current)
        for path in inner:
            os.chmod(path, 0o700)  # a locked folder cannot be moved
            moved = os.path.join(folder, f".removed-{next(fresh)}-{os.urandom(8).hex()}")
            os.rename(path, moved)
            waiting.append(moved)
