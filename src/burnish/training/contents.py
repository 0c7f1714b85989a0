"""What a run depends on beside its config and data: its functions' code and its model's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from burnish.config import Config
from burnish.config.resolve import flatten, to_plain
from burnish.lm.folder import find_folder

FILES = "files."
"""Prefix of these entries beside the config's own keys."""
EDGE = 1 << 20
"""Bytes at either end of a weight file that are looked at, with its size."""


def file_digests(config: Config) -> dict[str, str]:
    """`files.NAME` -> digest, for every function file and weight file of a rooted config."""
    found = code_digests(config)
    for path in sorted(find_folder(config.model.path).glob("*.safetensors")):
        found[f"{FILES}{path.name}"] = _edges(path)
    return found


def code_digests(config: Config) -> dict[str, str]:
    """`files.NAME` -> digest, for every function file of a rooted config; empty for one not there."""
    code = {path.name: path for path in _code(config)}
    return {
        f"{FILES}{name}": _whole(path) if path.is_file() else ""
        for name, path in sorted(code.items())
    }


def _code(config: Config) -> Iterator[Path]:
    for key, value in flatten(to_plain(config)).items():
        if key.rpartition(".")[2] == "path" and isinstance(value, str) and ".py:" in value:
            yield Path(value.partition(":")[0])


def _whole(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _edges(path: Path) -> str:
    """Enough of a weight file to know it again, without reading gigabytes at every start."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(EDGE)
        file.seek(max(size - EDGE, 0))
        tail = file.read(EDGE)
    return hashlib.sha256(str(size).encode() + head + tail).hexdigest()[:16]
