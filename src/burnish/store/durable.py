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


def write_file(path: Path, data: bytes) -> None:
    """Replace a file in one go."""
    draft = path.with_name(f".{path.name}.partial")
    with telling(f"write {path}"):
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        sync(path.parent)


@contextmanager
def whole_folder(place: Path, what: str) -> Iterator[Path]:
    """A draft to fill; synced and renamed to `place` at the end, removed if anything fails."""
    draft = place.with_name(f"{DRAFT}{place.name}-{os.getpid()}")
    with telling(f"write {what}", draft):
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


def remove_folder(place: Path) -> None:
    """Take a folder away: under another name first, so that a kill leaves no half of it."""
    gone = place.with_name(f"{DRAFT}removed-{place.name}-{os.getpid()}")
    with telling(f"remove {place}"):
        os.replace(place, gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(folder: Path) -> None:
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
def telling(doing: str, draft: Path | None = None) -> Iterator[None]:
    """Turn what the system raises into one line; says how much room is left on a full disk."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            _explain(doing, error.errno, error.strerror or str(error), draft)
        ) from error
    except Exception as error:
        # Boundary: safetensors tells a full disk by an error of its own that holds the system's text.
        if type(error).__name__ != "SafetensorError":
            raise
        number = next(
            (n for n in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if os.strerror(n) in str(error)),
            0,
        )
        raise StoreError(_explain(doing, number, str(error), draft)) from error


def _explain(doing: str, number: int | None, reason: str, draft: Path | None) -> str:
    hint = ""
    if number in (errno.ENOSPC, errno.EDQUOT):
        free = _free(draft)
        hint = f" ({free} MB free there); free some space and repeat the command"
        reason = os.strerror(number)
    return f"cannot {doing}: {reason}{hint}."


def _free(draft: Path | None) -> str:
    place = draft.parent if draft is not None else Path()
    try:
        return f"{shutil.disk_usage(place).free // 1_000_000:,}"
    except OSError:
        return "0"
