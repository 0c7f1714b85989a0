"""Exports of a package that are imported when they are first used.

    if TYPE_CHECKING:
        from burnish.engines.bridge import Bridge
    __getattr__, __dir__ = lazy_exports(__name__)

The imports under `TYPE_CHECKING` say where each name lives: type checkers read them, and so does
`lazy_exports`, at the first name that is asked for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package."""

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        return exported(Path(str(sys.modules[package].__file__)))

    def find(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, own = homes()[name]
        return getattr(importlib.import_module(module), own)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes()})

    return find, listed


def exported(file: Path) -> dict[str, tuple[str, str]]:
    """Module and name behind each import of the file's `if TYPE_CHECKING:` block."""
    import ast

    found = {}
    for block in ast.parse(file.read_bytes()).body:
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom):
                    for alias in line.names:
                        found[alias.asname or alias.name] = (str(line.module), alias.name)
    return found
