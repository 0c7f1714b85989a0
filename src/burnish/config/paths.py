"""Make a config independent of the folder it was written in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from burnish.config.resolve import to_plain
from burnish.config.schema import Config
from burnish.lm.base import SHIPPED

FREE_FORM = ("fields", "options")
"""Tables whose keys are the user's own: a `path` in there is no file."""
WRITTEN = ("cache", "record")
"""Files that a judge writes."""


def rooted(config: Config, root: Path) -> Config:
    """The same config with every relative file path made absolute from `root`.

    Names that Python finds (`package.module:function`) and shipped models stay as they are.
    """
    plain: dict[str, Any] = to_plain(config)
    for table in ("task", "rewards", "policy", "experts"):
        plain[table] = _walk(plain[table], root.absolute())
    if config.model.path not in SHIPPED and (root / config.model.path).is_dir():
        plain["model"]["path"] = str(root.absolute() / config.model.path)
    return msgspec.convert(plain, Config)


def _walk(value: Any, root: Path) -> Any:
    if isinstance(value, list | tuple):
        return [_walk(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _place(key, item, root) for key, item in value.items()}


def _place(key: str, value: Any, root: Path) -> Any:
    """The value of one key, with its path made absolute where it is one."""
    if key in FREE_FORM or value == "":
        return value
    if key == "path" and isinstance(value, str):
        return absolute(value, root)
    if key in WRITTEN and isinstance(value, str):
        return str(root / value)
    if key == "model" and isinstance(value, str):
        return _model(value, root)
    return _walk(value, root)


def _model(name: str, root: Path) -> str:
    """A judge's model: a folder or a replayed file from `root`; names and addresses as they are."""
    kind, mark, file = name.partition(":")
    if kind == "replay" and mark:
        return f"replay:{root / file}"
    is_folder = name not in SHIPPED and "://" not in name and (root / name).is_dir()
    return str(root / name) if is_folder else name


def absolute(path: str, root: Path) -> str:
    """`data.jsonl` or `mine.py:function` from `root`; `package.module:function` unchanged."""
    file, colon, function = path.partition(":")
    if colon and not file.endswith(".py"):
        return path
    return str(root / file) + colon + function
