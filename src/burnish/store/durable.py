"""Files and folders that are on disk whole or not there at all, after a kill and after a power cut.

    write_file(folder / "calibration.json", data)
    with whole_folder(folder / "step-000010", "checkpoint step-000010") as draft:
        ...                                     # write into draft

Everything is written beside its place, synced, and renamed into it. What the system refuses (a full
disk, a folder without permission) is one `StoreError`, and nothing of the draft stays.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.errors import StoreError

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
            free = f"{_free_mb(place.parent):,} MB free there"
            reason = f"{os.strerror(number)} ({free}); free some space and repeat the command"
        raise StoreError(f"cannot {doing}: {reason}.") from error


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _free_mb(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free // 1_000_000
    except OSError:
        return 0
