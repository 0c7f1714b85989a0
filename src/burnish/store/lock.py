"""One writer a run: a lock on a file that the system releases when the writer dies, however it does.

A file with a process number in it would outlive a `kill -9`; `flock` does not. The file's text only
says who holds it, for the message that a second writer gets.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
import weakref
from pathlib import Path

from burnish.errors import StoreError

PROBE_S = 0.3
"""A reader that asks `is_held` holds a shared lock for an instant; a writer waits that out."""


class WriterLock:
    """Held from construction until `release`, or until the process ends.

    `busy` is the line for whom it is held by another, who is named in its `{holder}`.
    """

    def __init__(self, path: Path, busy: str = "") -> None:
        self.path = path
        busy = busy or f"{path.parent} is being written by {{holder}}; a run has one writer. " + (
            "Wait for it, stop it, or choose another run name."
        )
        self._descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot lock the run for writing: {error.strerror}."
            ) from error
        try:
            _take(descriptor, busy)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {platform.node()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(
                f"{path}: cannot lock the run for writing: {error.strerror}."
            ) from error
        except StoreError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)

    @property
    def is_in_place(self) -> bool:
        """Whether the file that is locked is still the one of that path."""
        try:
            named = os.stat(self.path)
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(self._descriptor))

    def release(self) -> None:
        """Let the next writer in."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()
        _held.discard(self)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_held(path: Path) -> bool:
    """True while a living process writes the run."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _take(descriptor: int, busy: str) -> None:
    deadline = time.monotonic() + PROBE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                raise StoreError(busy.replace("{holder}", holder or "another process")) from None
        time.sleep(0.02)


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child shares the lock and could keep it after the writer's death: let go of it."""
    for lock in list(_held):
        lock._close()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
