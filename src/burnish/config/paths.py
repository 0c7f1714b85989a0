"""Make a config independent of the folder it was written in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from burnish.config.resolve import to_plain
from burnish.config.schema import Config
from burnish.lm.base import SHIPPED
from burnish.lm.new_model import BYTE, NEW
from burnish.memory import ROWS, is_kept, rows_file
from burnish.rewards.checks.support import SupportConfig
from burnish.rollouts.env import SHIPPED_ENVS, SHIPPED_TOOLS, file_options

TABLES = ("task", "rewards", "policy", "experts", "rollout", "train", "stages")
"""Where pieces name their files."""
FREE_FORM = ("fields", "options")
"""Tables whose keys are the user's own: a `path` in there is no file."""
SLOTS = (
    "task",
    "rewards",
    "rollout",
    "train",
    "shaping",
    "advantage",
    "select",
    "trust_region",
    "auxiliary",
)
"""Tables that a bare word can name: `rewards=my_rewards.py:brief`."""
SUPPORT = SupportConfig.__struct_config__.tag
SEARCHES = {*SHIPPED_TOOLS, *SHIPPED_ENVS}
"""Names in the place of a path whose options name files."""


def rooted(config: Config, root: Path) -> Config:
    """The same config with every relative file path made absolute from `root`.

    Names that Python finds (`package.module:function`) and shipped models stay as they are.
    """
    return msgspec.convert(_rooted(to_plain(config), root.absolute()), Config)


def with_files(config: Config, folder: Path) -> Config:
    """The same config with rows that live in memory named by the file that `folder` keeps of them."""
    return msgspec.convert(_with_files(to_plain(config), folder), Config)


def _with_files(plain: Any, folder: Path) -> Any:
    if isinstance(plain, dict):
        return {key: _with_files(item, folder) for key, item in plain.items()}
    if isinstance(plain, list):
        return [_with_files(item, folder) for item in plain]
    is_rows = isinstance(plain, str) and is_kept(plain) and plain.endswith(ROWS)
    return str(rows_file(plain, folder)) if is_rows else plain


def typed_value(keys: Sequence[str], value: Any, root: Path) -> Any:
    """The value of one dotted key with every path in it made absolute from `root`."""
    for key in reversed(keys):
        value = {key: value}
    plain = _rooted(value, root.absolute())
    for key in keys:
        plain = plain[key]
    return plain


def _rooted(plain: Mapping[str, Any], root: Path) -> Any:
    found = {k: _place(k, item, root) if k in TABLES else item for k, item in plain.items()}
    if isinstance(found.get("model"), str):
        found["model"] = _folder(found["model"], root)
    for keys in (("model", "path"), ("model", "new", "tokenizer")):
        found = _changed(found, keys, lambda word: _folder(word, root))
    return _changed(found, ("sampler", "folder"), lambda word: str(root / word))


def _walk(value: Any, root: Path) -> Any:
    if isinstance(value, list | tuple):
        return [_walk(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _place(key, item, root) for key, item in value.items()}
    if value.get("path") in SEARCHES:
        return found | {"path": value["path"], "options": _searched(value.get("options", {}), root)}
    return _searched(found, root) if value.get("kind") == SUPPORT else found


def _game(table: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """A rollout function's table, with the files that its options name from `root`."""
    known = file_options(table["path"], root)
    changes: tuple[tuple[Iterable[str], Callable[[str], str]], ...] = (
        (known.functions, lambda word: _named_function(word, root)),
        (known.sources, lambda word: str(root / word) if (root / word).exists() else word),
        (known.written, lambda word: str(root / word)),
    )
    options = table.get("options", {})
    for keys, change in changes:
        for key in keys:
            options = _changed(options, key.split("."), change)
    return {**table, "options": options}


def _changed(table: Any, keys: Sequence[str], change: Callable[[str], Any]) -> Any:
    if not isinstance(table, dict) or keys[0] not in table:
        return table
    inner = table[keys[0]]
    if len(keys) > 1:
        return {**table, keys[0]: _changed(inner, keys[1:], change)}
    return {**table, keys[0]: change(inner)} if isinstance(inner, str) and inner else table


def _searched(table: Mapping[str, Any], root: Path) -> dict[str, Any]:
    names = {key: table[key] for key in ("source", "index") if table.get(key)}
    return {**table, **{key: str(root / str(name)) for key, name in names.items()}}


def _place(key: str, value: Any, root: Path) -> Any:
    """The value of one key, with the paths in it made absolute where it has any."""
    if key in FREE_FORM or value == "":
        return value
    if key == "rollout" and isinstance(value, dict) and ":" in str(value.get("path", "")):
        return _game(_walk(value, root), root)
    if key == "critic" and isinstance(value, dict) and value.get("path"):
        return value | {"path": _folder(value["path"], root)}
    change = PLACES.get(key)
    if change is not None and isinstance(value, str):
        return change(value, root)
    if change is not None and isinstance(value, list | tuple):
        value = [change(one, root) if isinstance(one, str) else one for one in value]
    return _walk(value, root)


def _named_function(word: str, root: Path) -> str:
    """A bare word that names a function in a file, from `root`; everything else as it is."""
    return absolute(word, root) if ".py:" in word else word


def _under(path: str, root: Path) -> str:
    return str(root / path)


def _existing(word: str, root: Path) -> str:
    """A word of a command, from `root` where it is a file there."""
    return str(root / word) if (root / word).is_file() else word


def _model(name: str, root: Path) -> str:
    """A judge's model: a folder or a replayed file from `root`; names and addresses as they are."""
    kind, mark, file = name.partition(":")
    if kind == "replay" and mark:
        return f"replay:{root / file}"
    return _folder(name, root)


def _folder(name: str, root: Path) -> str:
    """A model's folder from `root`, where there is one; a shipped or served model's name stays."""
    is_name = name in (*SHIPPED, NEW, BYTE) or "://" in name
    is_folder = not is_name and (root / name).is_dir()
    return str(root / name) if is_folder else name


def absolute(path: str, root: Path) -> str:
    """`data.jsonl` or `mine.py:function` from `root`; `package.module:function` unchanged."""
    file, colon, function = path.partition(":")
    if colon and not file.endswith(".py"):
        return path
    return str(root / file) + colon + function


PLACES: dict[str, Callable[[str, Path], str]] = {
    "path": absolute,
    "data": absolute,
    "held_out_data": absolute,
    "command": _existing,
    "attribute": _named_function,
    "model": _model,
    "teacher": _folder,
    "tokenizer": _folder,
    "policies": _under,
    "cache": _under,
    "record": _under,
    **dict.fromkeys(SLOTS, _named_function),
}
"""What the texts of a key become; those of other keys are no paths."""
