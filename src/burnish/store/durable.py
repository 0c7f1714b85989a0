"""Files and folders that are on disk whole or not there at all, after a kill and after a power cut.

    write_file(folder / "calibration.json", data)
    with whole_folder(folder / "step-000010", "checkpoint step-000010") as draft:
        ...                                     # write into draft

Everything is written beside its place, synced, and renamed into it. What the system refuses (a full
disk, a folder without permission) is one `StoreError`, and nothing of the draft stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from burnish.errors import StoreError

T = TypeVar("T")
DRAFT = ".writing-"
"""How the name of a folder begins that is being written."""


def write_file(path: Path, data: bytes, *, is_synced: bool = True) -> None:
    """Replace a file in one go; several processes may do so at once.

    Not synced, it is fast, and a power cut may leave it empty or short.
    """
    with whole_file(path, is_synced=is_synced) as draft:
        draft.write_bytes(data)


@contextmanager
def whole_file(path: Path, *, is_synced: bool = True) -> Iterator[Path]:
    """A draft to fill; synced and renamed to `path` at the end, removed if anything fails."""
    draft = path.with_name(f".{path.name}-{os.getpid()}.partial")
    with store_errors(f"write {path}", path):
        try:
            yield draft
            if is_synced:
                sync(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        if is_synced:
            sync(path.parent)


@contextmanager
def whole_folder(place: Path, what: str) -> Iterator[Path]:
    """A draft to fill; synced and renamed to `place` at the end, removed if anything fails."""
    draft = place.with_name(f"{DRAFT}{place.name}-{os.getpid()}")
    with store_errors(f"write {what}", draft):
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            yield draft
            sync_tree(draft)
            os.replace(draft, place)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync(place.parent)


def make_folder(place: Path) -> None:
    """A folder and those above it, where they are not there."""
    with store_errors(f"make the folder {place}", place):
        place.mkdir(parents=True, exist_ok=True)


def remove_folder(place: Path) -> None:
    """Take a folder away: under another name first, so that a kill leaves no half of it."""
    gone = place.with_name(f"{DRAFT}removed-{place.name}-{os.getpid()}")
    with store_errors(f"remove {place}", place):
        os.replace(place, gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_drafts(folder: Path) -> None:
    """Remove what a killed writer left."""
    for draft in folder.glob(f"{DRAFT}*"):
        shutil.rmtree(draft, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Wait until every file below a folder, and every name in it, is on disk."""
    for inner, _, names in os.walk(folder):
        for name in names:
            sync(Path(inner) / name)
        sync(Path(inner))


def sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without it
            raise
    finally:
        os.close(descriptor)


@contextmanager
def store_errors(doing: str, place: Path) -> Iterator[None]:
    """Raise what the system refuses as a one-line `StoreError`; on a full disk with the free space."""
    try:
        yield
    except Exception as error:
        # Boundary: the system, and safetensors, whose own error holds the system's text.
        if isinstance(error, OSError):
            number, reason = error.errno, error.strerror or str(error)
        elif type(error).__name__ == "SafetensorError":
            number = next((n for n in _FULL if os.strerror(n) in str(error)), None)
            reason = str(error)
        else:
            raise
        if number in _FULL:
            free = 0
            with suppress(OSError):
                free = shutil.disk_usage(place.parent).free // 1_000_000
            told = f"{os.strerror(number)} ({free:,} MB free there)"
            reason = f"{told}; free some space and repeat the command"
        raise StoreError(f"cannot {doing}: {reason}.") from error


_FULL = (errno.ENOSPC, errno.EDQUOT)


def read_record(path: Path, kind: type[T]) -> T:
    """What a JSON file holds of this type; a file that cannot be read is one `StoreError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise StoreError(f"{path}: cannot read: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: damaged: {error}.") from error


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
        with ExitStack() as undo, store_errors(f"lock {path} for writing", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            undo.callback(os.close, descriptor)
            _take(descriptor, busy)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {platform.node()}\n".encode(), 0)
            undo.pop_all()
        self._descriptor = descriptor
        _held.add(self)

    @property
    def is_in_place(self) -> bool:
        """Whether the file that is locked is still the one of that path."""
        with suppress(OSError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        return False

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
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
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
