"""Functions addressed by import path: `my_file.py:name` or `package.module:name`. No pickles."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish.errors import UserError, did_you_mean
from burnish.rewards.scorer import describe
from burnish.source import load_source


def load_function(path: str, *, base: str | Path = ".") -> Callable[..., Any]:
    """The function at `file.py:name` (relative to `base`) or `module:name`.

    A file is imported once for each content it has had, so an edited file is a new function;
    `function_fingerprint` tells the two apart.
    """
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise UserError(
            f"reward path '{path}' names no function; expected 'file.py:name' or 'module:name'."
        )
    module = _from_file(Path(base) / place) if place.endswith(".py") else _from_name(place)
    found = getattr(module, name, None)
    if found is None:
        names = [key for key, value in vars(module).items() if callable(value)]
        raise UserError(f"'{place}' has no function '{name}'.{did_you_mean(name, names)}")
    if not callable(found):
        raise UserError(f"'{name}' in '{place}' is {type(found).__name__}; expected a function.")
    function: Callable[..., Any] = found
    return function


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        near = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(f"reward file '{file}' does not exist.{did_you_mean(file.name, near)}")
    try:
        return load_source(file)
    except Exception as error:  # boundary: the user's file runs here
        raise UserError(f"reward file '{file}' cannot be imported: {describe(error)}.") from error


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # boundary: the user's module runs here
        raise UserError(f"reward module '{name}' cannot be imported: {describe(error)}.") from error
