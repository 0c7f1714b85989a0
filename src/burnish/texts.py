"""Texts of models, files and servers, made safe to show; values as TOML text."""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.errors import UserError, first_line

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HALF = re.compile("[\ud800-\udfff]")
_HALF_PAIR = re.compile(
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def safe(text: str) -> str:
    """A text that cannot steer what shows it: control and direction characters are written out.

    What a model, a file or a server said is data; an escape sequence in it must not be obeyed.
    """
    return _STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def shown_path(path: Path) -> Path:
    """A path as one types it from the working folder; as it is where it lies elsewhere."""
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def run_word(folder: Path) -> str:
    """The word that names a run in `burnish show`: its name inside `runs`, else its path."""
    place = shown_path(folder)
    return place.name if place.parent == Path("runs") else str(place)


def counted(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def share(value: float | None) -> str:
    """A share as a percentage; small but not zero stays visible."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"


def duration(seconds: float) -> str:
    """Seconds as `0.42 s`, `12 s`, `3 min 05 s` or `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def read_text(path: Path) -> str:
    """The text of a file that a person named."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {first_line(error)}") from error


def read_toml(text: str) -> dict[str, Any]:
    """What a TOML text holds; every mistake in it is a `TOMLDecodeError`."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python reads no number of more than 4300 digits
        raise tomllib.TOMLDecodeError("a number has thousands of digits") from None


def whole_characters(text: str) -> str:
    """A text that can be sent and stored: half a character (a lone surrogate) becomes `?`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def whole_texts(value: Any) -> Any:
    """A value of lists, dicts and texts with U+FFFD for each half of a character, in keys too.

    >>> whole_texts({"a": ["x\\ud800"]}) == {"a": ["x\\ufffd"]}
    True
    """
    if isinstance(value, str):
        return value if value.isascii() else _HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {whole_texts(key): whole_texts(one) for key, one in value.items()}
    return [whole_texts(one) for one in value] if isinstance(value, list | tuple) else value


def half_pair(text: str) -> str:
    """The first escape in a JSON text that is half of a surrogate pair; empty where there is none.

    >>> half_pair('["\\\\ud83d\\\\ude00", "\\\\ud83d"]')
    '\\\\ud83d'
    """
    found = _HALF_PAIR.search(text)
    return found.group() if found else ""


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to its first stop string; some servers leave that string in."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def toml_value(value: Any) -> str:
    """A value on one line; None, which TOML lacks, is the word "none"."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict):
        inner = ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    return toml_string(str(value))


def toml_key(key: str) -> str:
    """A key, quoted where TOML asks for it."""
    return key if _BARE.fullmatch(key) else toml_string(key)


def flat_key(key: str) -> str:
    """A key as part of a dotted one; a key of digits is quoted, so that it is not an index."""
    return toml_string(key) if key.isdigit() else toml_key(key)


def toml_string(text: str) -> str:
    """A basic string."""
    return '"' + "".join(_escaped(letter) for letter in text) + '"'


def _escaped(letter: str) -> str:
    if letter in _SHORT:
        return _SHORT[letter]
    return f"\\u{ord(letter):04x}" if letter < " " or letter == "\x7f" else letter
