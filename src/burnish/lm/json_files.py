"""The small JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.errors import UserError


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    if not file.is_file():
        return {}
    try:
        read = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}") from error
    except RecursionError:
        raise UserError(f"{file} is not valid JSON: nested too deeply") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(read, dict):
        raise UserError(f"{file} holds a {type(read).__name__}; expected a JSON object")
    return read


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Indented, with sorted keys: equal contents give equal files."""
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
