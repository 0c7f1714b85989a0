"""Removing a folder that foreign code has filled."""

from __future__ import annotations

import contextlib
import itertools
import os


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
