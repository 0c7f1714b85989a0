"""The JSON object that a reply ends in.

    extract_json('I compared both.\\n```json\\n{"score": 1}\\n```')     # {"score": 1}

Which text is read: the last block fenced as json, else the last fenced block, else all of it. A
block that is no JSON object is no verdict; an earlier one does not stand in for it.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, overload

from burnish.arguments import read_each

_FENCES = (
    re.compile(r"```[ \t]*json\b(.*?)```", re.DOTALL | re.IGNORECASE),
    re.compile(r"```(?:[ \t]*(?:[\w+-]+[ \t]*)?\n)?(.*?)```", re.DOTALL),
)


@overload
def extract_json(texts: str) -> dict[str, Any] | None: ...
@overload
def extract_json(texts: list[str] | tuple[str, ...]) -> list[dict[str, Any] | None]: ...
def extract_json(
    texts: str | list[str] | tuple[str, ...],
) -> dict[str, Any] | list[dict[str, Any] | None] | None:
    """The object of each text, or None where there is none; one text gives one result."""
    found: dict[str, Any] | list[dict[str, Any] | None] | None = read_each("texts", texts, _object)
    return found


def _object(text: str) -> dict[str, Any] | None:
    try:
        return read_object(json_text(text))
    except ValueError:
        return None


def json_text(text: str) -> str:
    """The part of a reply that should be JSON."""
    return next((found[-1].strip() for f in _FENCES if (found := f.findall(text))), text.strip())


def read_object(text: str) -> dict[str, Any]:
    """A JSON object and nothing else; a `ValueError` says what the text is instead."""
    return _decoded(text, whole=True)


def first_object(text: str) -> dict[str, Any]:
    """The JSON object that a text begins with, whatever follows."""
    return _decoded(text, whole=False)


def _decoded(text: str, *, whole: bool) -> dict[str, Any]:
    try:
        value = _DECODER.decode(text) if whole else _DECODER.raw_decode(text)[0]
    except RecursionError:
        raise ValueError("expected a JSON object, got one that is nested too deep") from None
    except ValueError as error:
        got = " ".join(text[:60].split()) or "nothing"
        raise ValueError(f"expected a JSON object, got {got!r}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got a {type(value).__name__}")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
