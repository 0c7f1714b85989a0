"""Functions, scorers and rows that live in this process, under names that a config can hold.

A name holds a digest of what it stands for: the code of a function with the helpers, constants and
closures that it uses, or the bytes of the rows.
"""

from __future__ import annotations

import base64
import inspect
import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from burnish.digest import code_digest as code_digest
from burnish.errors import UserError
from burnish.numbers import plain
from burnish.seeds import digest

PREFIX = "memory:"
ROWS = ".jsonl"
"""Ending of the names of rows."""

_ROWS_NAME = re.compile(r"rows-[0-9a-f]{16}\.jsonl")

_kept: dict[str, Any] = {}


def keep_object(value: Any) -> str:
    """Keep a function or a scorer; the same code under the same name gives the same path."""
    path = f"{PREFIX}{object_name(value)}@{code_digest(value)[:16]}"
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


def kept_name(path: str) -> str:
    """What a person called it: `brief` of `memory:brief@1f0c9a3b2d4e5f60`; rows have no name."""
    own = path.removeprefix(PREFIX).partition("@")[0]
    return "rows" if own.startswith("rows-") and own.endswith(ROWS) else own


def recall(path: str) -> Any:
    """The function, the scorer or the bytes of rows behind a path."""
    if path in _kept:
        return _kept[path]
    own = path.removeprefix(PREFIX).partition("@")[0]
    raise UserError(
        f"'{path}' stands for '{own}', which was given in Python and is not in this process. Run the "
        f"Python call that began the run again; or give it again, as rewards=[{own}]; or name a file "
        f"that holds it, such as the run's copy of its text: RUN/code/{own}.py:{own}."
    )


def kept_files(paths: Iterable[str], folder: Path) -> Iterator[tuple[Path, bytes]]:
    """What a run's folder keeps of these: rows as data, functions as their text.

    Functions of one name, as all lambdas are, have the begin of their digest in the file's name.
    """
    paths = list(paths)
    names = {path: path.removeprefix(PREFIX).partition("@") for path in dict.fromkeys(paths)}
    # names that differ only in case are one file on some disks
    shared = Counter(own.lower() for own, _, _ in names.values())
    for path in paths:
        if path.endswith(ROWS):
            yield rows_file(path, folder), recall(path)
        else:
            own, _, code = names[path]
            file = f"{own}-{code[:8]}.py" if shared[own.lower()] > 1 else f"{own}.py"
            yield folder / "code" / file, _source(recall(path)).encode()


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
    try:
        written = {key: _without_bytes(value, str(key)) for key, value in row.items()}
    except ValueError as error:
        raise UserError(f"{what}: row {number}, {error}") from None
    try:
        line = msgspec.json.encode(written, enc_hook=_plain)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UserError(
            f"{what}: row {number} cannot be written as JSON: {' '.join(str(error).split())[:200]}. "
            "Expected texts, numbers, lists and dicts with text keys."
        ) from None
    # JSON has no such numbers, and the encoder writes them as null.
    if b"null" in line and (found := next(_not_finite(row), None)) is not None:
        place, got = found
        raise UserError(
            f"{what}: row {number}, {place} is {got}; expected a finite number, or None where there "
            "is none."
        )
    return line


def _without_bytes(value: Any, key: str) -> Any:
    """Images and sounds as `data:` addresses, which tasks read; other bytes are refused."""
    from burnish.media.kinds import media_type_of

    if isinstance(value, bytes | bytearray | memoryview):
        if (kind := media_type_of(data := bytes(value))) is None:
            raise ValueError(f"{key!r} holds bytes; expected text: value.decode().")
        return f"data:{kind};base64,{base64.b64encode(data).decode()}"
    if isinstance(value, Mapping):
        return {name: _without_bytes(one, key) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bytes(one, key) for one in value]
    # A picture of Pillow, as Hugging Face's datasets give them.
    if hasattr(value, "getbands") and hasattr(value, "save"):
        into = io.BytesIO()
        value.save(into, "PNG")
        return _without_bytes(into.getvalue(), key)
    return value


def _not_finite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """NaN and infinity anywhere in a value: `scores[2]`, `answer.value`."""
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{place}[{index}]")


def _plain(value: Any) -> Any:
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
        return textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError):
        return f"# The source of {object_name(value)} was not to be had.\n"
