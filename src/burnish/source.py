"""Functions of a user's own, addressed by path: `my_file.py:name` or `package.module:name`. No pickles."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish import user_code
from burnish.errors import UserError, did_you_mean
from burnish.memory import is_kept, recall
from burnish.seeds import digest
from burnish.texts import safe
from burnish.user_code import calling_user_code

MOST_CHARACTERS = 2000
"""Of an exception's text that are looked at."""
MOST_DESCRIBED = 500
"""Characters of a line that describes an exception."""


def find_function(path: str, where: str, root: Path = Path()) -> Callable[..., Any]:
    """The function that a path names; files are looked up from `root`, `where` begins an error."""
    if is_kept(path):
        kept: Callable[..., Any] = recall(path)
        return kept
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise UserError(
            f"{where} '{path}' names no function; expected 'file.py:name' or 'package.module:name'."
        )
    module = find_module(place, f"{where} '{path}'", root)
    found = getattr(module, name, None)
    if callable(found):
        function: Callable[..., Any] = found
        return function
    known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    got = f"has no function '{name}'" if found is None else f"has '{name}', which is no function"
    raise UserError(f"{where} '{path}': '{place}' {got}.{did_you_mean(name, known)}")


def iterate_user_function(function: Callable[[], Any], source: str) -> Iterator[Any]:
    """What the user's function yields; what it raises is told in one line that begins with `source`."""
    try:
        with calling_user_code():
            found = iter(function())
        end = object()
        while True:
            with calling_user_code():
                one = next(found, end)
            if one is end:
                return
            yield one
    except (UserError, GeneratorExit):
        raise
    except Exception as error:  # boundary: the user's function
        raise UserError(f"{source}: raised {describe(error)}") from error


def find_module(place: str, where: str, root: Path = Path()) -> ModuleType:
    """The module of `my_file.py` or `package.module`; `where` begins an error."""
    file = root / place
    if place.endswith(".py") and not file.is_file():
        near = [other.stem for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        # By their stems: that both end in .py says nothing.
        hint = did_you_mean(file.stem, near).replace("'?", ".py'?")
        raise UserError(f"{where}: file '{file.absolute()}' does not exist.{hint}")
    try:
        with calling_user_code():
            return load_source(file) if place.endswith(".py") else importlib.import_module(place)
    except BaseException as error:  # boundary: the user's module runs here
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UserError(f"{where}: '{place}' cannot be imported: {describe(error)}.") from error


def load_source(file: Path) -> ModuleType:
    """The module of a file, run once for each content it has had.

    Python's own loader would trust a cached compilation of the same size and second, and would
    write one beside the user's file. Whatever the file raises passes through.
    """
    text = file.read_bytes()
    name = f"burnish_user_{digest(str(file.resolve()), text)}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # dataclasses look a module up while it is being run
    try:
        exec(compile(text, str(file), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_cancelled(error: BaseException) -> bool:
    """Whether an exception in a coroutine is the end that someone asked of its task.

    Foreign code may raise CancelledError of its own accord, which is a failure like any other.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def source_text(function: Callable[..., Any]) -> bytes:
    """The text of the files a function comes from: helpers in them count as much as it does."""
    module = sys.modules.get(function.__module__) if hasattr(function, "__module__") else None
    home = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    files = dict.fromkeys(f for f in (getattr(module, "__file__", None), home) if f)
    return b"".join(Path(file).read_bytes() for file in files if Path(file).is_file())


def describe(error: BaseException) -> str:
    """An exception on one line: its type, its message and where in the source it was raised."""
    try:
        text = safe(" ".join(str(error)[:MOST_CHARACTERS].split()))
    except BaseException:  # boundary: the text of a foreign exception is foreign code too
        text = "(its text cannot be read: str() of it raises)"
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    trace = error.__traceback__
    places: list[str] = []
    own: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == user_code.__file__ and places:
            break  # the line of the user's own that was refused
        file = code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
        places.append(f" ({file}:{trace.tb_lineno} in {code.co_name})")
        if not _is_library(code.co_filename):
            own.append(places[-1])
        trace = trace.tb_next
    place = (own or places or [""])[-1]
    return line[: MOST_DESCRIBED - len(place)] + place


@functools.cache
def _is_library(file: str) -> bool:
    """Whether a file belongs to burnish, Python or an installed package; user code does not."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [*(sysconfig.get_path(name) for name in names), str(Path(__file__).parent)]
    is_installed = f"{os.sep}site-packages{os.sep}" in file
    return is_installed or file.startswith(("<frozen", *(f"{p}{os.sep}" for p in places)))
