"""Plain values as TOML text."""

from __future__ import annotations

import datetime
import re
from typing import Any

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
