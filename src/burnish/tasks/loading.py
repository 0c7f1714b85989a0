"""A user's function by import path, with the source that it is made of."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish.errors import UserError, did_you_mean
from burnish.source import load_source


def load_function(path: str, root: Path, where: str) -> tuple[Callable[..., Any], bytes]:
    """The function, and the text of its file (helpers in it count as much as the function)."""
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise UserError(
            f"{where}: no function in the path; expected 'file.py:name' or 'module:name'."
        )
    module = _module(place, root, where)
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        got = (
            f"has no function '{name}'" if found is None else f"has '{name}', which is no function"
        )
        raise UserError(f"{where}: '{place}' {got}.{did_you_mean(name, known)}")
    # A function that is imported from elsewhere changes with the file it was written in.
    home = inspect.getsourcefile(found) if inspect.isfunction(found) else None
    files = dict.fromkeys(file for file in (module.__file__, home) if file)
    return found, b"".join(Path(file).read_bytes() for file in files if Path(file).is_file())


def _module(place: str, root: Path, where: str) -> ModuleType:
    file = root / place
    if place.endswith(".py") and not file.is_file():
        near = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(f"{where}: '{file}' does not exist.{did_you_mean(file.name, near)}")
    try:
        return load_source(file) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # boundary: the user's module runs here
        raise UserError(f"{where}: '{place}' cannot be imported: {described(error)}.") from error


def described(error: BaseException) -> str:
    """An exception on one line: type, message and the line of source that raised it."""
    text = " ".join(str(error).split())[:300]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"
