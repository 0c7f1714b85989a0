"""Packages that need torch: imported when something needs them, with one line where it is missing."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from burnish.errors import UserError


def set_torch_environment() -> None:
    """Settings of the process that torch reads once, when it is loaded."""
    # Torch's threads wait for each other by spinning: on a machine that does anything else, a
    # step takes several times as long. Read once, when torch is loaded. A short spin stays: going
    # to sleep between two operations of a small model takes longer than the operations.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    # Large pages for large tensors: fewer of them to clear, and to find again.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def import_training() -> Any:
    """`burnish.training`, which needs torch."""
    set_torch_environment()
    return _import("burnish.training", "training")


def require_torch(what: str) -> None:
    """Load torch with its settings; `what` begins the line where it is missing."""
    set_torch_environment()
    _import("torch", what)


def find_torch() -> None:
    """Refuse training where torch is not installed, without the seconds that loading it takes."""
    import importlib.util

    with needed("training", "torch"):
        if importlib.util.find_spec("torch") is None:
            raise ModuleNotFoundError("no torch", name="torch")


def import_policy() -> Any:
    """`burnish.policy` with the functions that compute, which need torch."""
    require_torch("advantages and losses")
    return _import("burnish.policy", "advantages and losses")


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """One line where a package of an extra is missing; `what` begins it."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "burnish"):
            raise
        raise UserError(
            f"{what} need{'s' if what in ('training', 'the viewer') else ''} the package "
            f"'{missing}', which is not installed. Install it: pip install 'burnish[{extra}]'"
        ) from error


def _import(name: str, what: str) -> ModuleType:
    with needed(what, "torch"):
        return importlib.import_module(name)
