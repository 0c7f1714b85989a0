"""The folder where models that burnish makes itself are kept between runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """`BURNISH_CACHE` where set, else `burnish` in the user's cache folder."""
    named = os.environ.get("BURNISH_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "burnish"


def make_once(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, built by `build(folder)` where it is not there yet.

    Built beside its place and renamed into it, so that a half-built folder is never seen. Of two
    processes that build at once the first to finish wins, and the other takes its result.
    """
    target = cache_folder() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        build(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target
