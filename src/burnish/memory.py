"""Functions, scorers and rows that live in this process, under names that a config can hold.

    keep_object(brief)            # "memory:brief@1f0c9a3b2d4e5f60"
    keep_rows(rows)               # "memory:rows-9b1d0c7a4f2e6d83.jsonl"
    recall("memory:brief@1f0c9a3b2d4e5f60")(text="7")

A name holds a digest of what it stands for: the code of a function with the helpers, constants and
closures that it uses, or the bytes of the rows. So two versions of a function are two names, and
the config of a run says which one it was trained with.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import UserError
from burnish.seeds import digest

PREFIX = "memory:"
ROWS = ".jsonl"
"""Ending of the names of rows."""

_ROWS_NAME = re.compile(r"rows-[0-9a-f]{16}\.jsonl")

_kept: dict[str, Any] = {}
_first_seen: dict[int, tuple[Any, str]] = {}
"""Lists, tables, sets and objects that functions use, with their digest when first met."""


def keep_object(value: Any, name: str = "") -> str:
    """Keep a function or a scorer; the same code under the same name gives the same path."""
    own = name or object_name(value)
    path = f"{PREFIX}{own}@{code_digest(value)[:16]}"
    _kept[path] = value
    return path


def keep_rows(rows: Iterable[Mapping[str, Any]], what: str = "data") -> str:
    """Keep rows as JSON lines; the same rows give the same path."""
    lines = [_line(row, number, what) for number, row in enumerate(rows)]
    if not lines:
        raise UserError(f"{what}: got no rows; expected at least one.")
    content = b"\n".join(lines) + b"\n"
    path = _rows_path(content)
    _kept[path] = content
    return path


def _rows_path(content: bytes) -> str:
    return f"{PREFIX}rows-{digest(content)[:16]}{ROWS}"


def is_kept(path: str) -> bool:
    """Whether a path of a config names something that lives, or lived, in memory."""
    return path.startswith(PREFIX)


def recall(path: str) -> Any:
    """The function, the scorer or the bytes of rows behind a path."""
    if path in _kept:
        return _kept[path]
    own = path.removeprefix(PREFIX).partition("@")[0]
    raise UserError(
        f"'{path}' stands for '{own}', which was given in Python and is not in this process. Run the "
        "Python call that began the run again, or name a file: my_file.py:name."
    )


def kept_files(paths: Iterable[str], folder: Path) -> Iterator[tuple[Path, bytes]]:
    """What a run's folder keeps of these: rows as data, functions as their text."""
    for path in paths:
        if path.endswith(ROWS):
            yield rows_file(path, folder), recall(path)
        else:
            own = path.removeprefix(PREFIX).partition("@")[0]
            yield folder / "code" / f"{own}.py", _source(recall(path)).encode()


def restore_rows(paths: Iterable[str], folder: Path) -> None:
    """Take rows that another process kept from the files of a run's folder."""
    for path in paths:
        if not path.endswith(ROWS) or path in _kept:
            continue
        file = rows_file(path, folder)
        if file.is_file():
            content = file.read_bytes()
            if path != _rows_path(content):
                raise UserError(
                    f"{file} was changed since its run began: it is not what '{path}' stands for. "
                    "Give the rows to burnish.train(data=...) again."
                )
            _kept[path] = content


def kept_paths(plain: Any) -> list[str]:
    """The names in memory that stand anywhere in a plain config, each once."""
    if isinstance(plain, Mapping):
        found = [path for item in plain.values() for path in kept_paths(item)]
    elif isinstance(plain, list | tuple):
        found = [path for item in plain for path in kept_paths(item)]
    else:
        found = [plain] if isinstance(plain, str) and is_kept(plain) else []
    return list(dict.fromkeys(found))


def rows_file(path: str, folder: Path) -> Path:
    """Where a run's folder keeps rows."""
    own = path.removeprefix(PREFIX)
    # The name may come from the config of somebody else's run.
    if not _ROWS_NAME.fullmatch(own):
        raise UserError(
            f"'{path}' names no rows; expected {PREFIX}rows-, 16 hex digits and {ROWS}."
        )
    return folder / "data" / own


def object_name(value: Any) -> str:
    """A name for a function or an object that may stand in a path and in a curve."""
    while isinstance(value, partial):
        value = value.func
    own = getattr(value, "name", None) if not inspect.isroutine(value) else None
    text = own if isinstance(own, str) and own else getattr(value, "__name__", type(value).__name__)
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in text).strip("_") or "function"


def _line(row: Any, number: int, what: str) -> bytes:
    if not isinstance(row, Mapping):
        raise UserError(
            f"{what}: row {number} is {type(row).__name__}; expected a dict with named columns."
        )
    for key, value in row.items():
        if isinstance(value, bytes | bytearray | memoryview):
            raise UserError(
                f"{what}: row {number}, {str(key)!r} holds bytes; expected text: value.decode()."
            )
    try:
        return msgspec.json.encode(dict(row), enc_hook=_plain)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UserError(
            f"{what}: row {number} cannot be written as JSON: {' '.join(str(error).split())[:200]}. "
            "Expected texts, numbers, lists and dicts with text keys."
        ) from None


def _plain(value: Any) -> Any:
    """Values of other libraries: numpy and pandas scalars, arrays, timestamps."""
    for method in ("tolist", "item", "isoformat"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    raise TypeError(f"a value of type {type(value).__name__}")


def _source(value: Any) -> str:
    """The text of a function, for people who read the run's folder."""
    while isinstance(value, partial):
        value = value.func
    target = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        return f"# The source of {object_name(value)} was not to be had.\n"


# --- the digest of code


def code_digest(value: Any) -> str:
    """Identity of a function or an object: its byte code, and what that refers to.

    Comments, line numbers and the file do not count. Helpers, constants and closures do, also where
    another cell of a notebook defines them. Modules count by name. A list or a table counts as it
    was when it was first met, so a function that collects what it sees stays the same.
    """
    return digest(*_marks(value, set()))


def _marks(value: Any, seen: set[int]) -> Iterator[str]:
    """Texts that differ where the value does."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple):
        yield f"tuple {len(value)}"
        for item in value:
            yield from _marks(item, seen)
    elif isinstance(value, frozenset):
        yield from ("frozenset", *sorted(digest(*_marks(item, seen)) for item in value))
    elif isinstance(value, types.CodeType):
        yield from ("code", value.co_code.hex(), repr(value.co_names), repr(value.co_varnames))
        yield from _marks(value.co_consts, seen)
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__}"
    elif isinstance(value, list | dict | set):
        yield _first_digest(value)
    elif id(value) in seen:
        yield "again"
    else:
        seen.add(id(value))
        yield from _marks_of_object(value, seen)


def _marks_of_object(value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, partial):
        yield from _marks((value.func, value.args, tuple(sorted(value.keywords.items()))), seen)
    elif isinstance(value, types.MethodType):
        yield from _marks((value.__func__, value.__self__), seen)
    elif isinstance(value, types.FunctionType):
        yield from _marks_of_function(value, seen)
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
        if _is_own(value):
            for name, item in sorted(vars(value).items()):
                if isinstance(item, types.FunctionType | staticmethod | classmethod | property):
                    yield name
                    yield from _marks(getattr(item, "__func__", getattr(item, "fget", item)), seen)
    elif callable(value) and not hasattr(value, "__dict__"):
        yield f"builtin {getattr(value, '__module__', '')}.{object_name(value)}"
    else:
        yield from _marks(type(value), seen)
        fingerprint = getattr(value, "fingerprint", None)
        if isinstance(fingerprint, str):
            yield fingerprint
        elif _is_own(type(value)) and hasattr(value, "__dict__"):
            yield _first_digest(value)


def _marks_of_function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    if not _is_own(function):
        yield f"function {function.__module__}.{function.__qualname__}"
        return
    yield from _marks(function.__code__, seen)
    yield from _marks(function.__defaults__, seen)
    yield from _marks(tuple(sorted((function.__kwdefaults__ or {}).items())), seen)
    written = _written(function.__code__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name not in written and (found := _content(cell)):
            yield name
            yield from _marks(found[0], seen)
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__ and name not in written:
            yield name
            yield from _marks(function.__globals__[name], seen)


def _is_own(value: Any) -> bool:
    """Whether a function or class is the user's: of a notebook, a script, a file beside it.

    The code of installed packages counts by name.
    """
    module = sys.modules.get(str(value.__module__))
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return str(value.__module__) != "builtins"
    return "site-packages" not in file and not file.startswith(sys.base_prefix)


def _content(cell: types.CellType) -> tuple[Any] | None:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name that is not bound yet
        return None


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inner(constant)


def _global_names(code: types.CodeType) -> set[str]:
    return {name for one in _inner(code) for name in one.co_names}


def _written(code: types.CodeType) -> set[str]:
    """Names that the code itself assigns outside it: counters, not part of what it is."""
    stores = ("STORE_GLOBAL", "STORE_DEREF")
    return {
        str(i.argval)
        for one in _inner(code)
        for i in dis.get_instructions(one)
        if i.opname in stores
    }


def _first_digest(value: Any) -> str:
    """The digest of a list, a table, a set or an object's attributes when it was first met."""
    if id(value) not in _first_seen:
        _first_seen[id(value)] = (value, "again")
        held = value if isinstance(value, list | dict | set) else vars(value)
        items = held.items() if isinstance(held, dict) else held
        parts = [digest(*_marks(item, set())) for item in items]
        ordered = parts if isinstance(held, list) else sorted(parts)
        _first_seen[id(value)] = (value, digest(type(value).__name__, *ordered))
    return _first_seen[id(value)][1]
