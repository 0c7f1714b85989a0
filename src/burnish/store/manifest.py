"""`config.json`: what a run was asked to do, where each value came from, and with which versions.

It is written once, last of all that makes a run folder, so a folder that has it is a whole run.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from burnish.errors import StoreError, UserError
from burnish.store.durable import write_file

FILE = "config.json"


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of `config.json`."""

    recipe: str
    """What the run was started from, for listings."""
    created: str
    config_hash: str
    """Of the values that a continuation must not change."""
    data_hash: str
    """Of the tasks."""
    versions: dict[str, str]
    platform: str
    config: dict[str, Any]
    """Resolved values."""
    origins: dict[str, str]
    """Dotted key -> where its value came from."""
    store: str = ""
    """Identity of the run.db beside it; empty in runs of earlier versions."""


def make(
    config: Mapping[str, Any],
    origins: Mapping[str, str],
    *,
    config_hash: str,
    data_hash: str,
    recipe: str,
) -> Manifest:
    """The manifest of a run that starts now, here."""
    return Manifest(
        recipe=recipe,
        created=now(),
        config_hash=config_hash,
        data_hash=data_hash,
        versions={
            "python": platform.python_version(),
            **{name: _version(name) for name in ("burnish", "torch", "transformers")},
        },
        platform=platform.platform(),
        config=dict(config),
        origins=dict(origins),
    )


def write(folder: Path, manifest: Manifest) -> None:
    """Put `config.json` in place in one go: it is there whole or not at all."""
    try:
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{folder / FILE}: the config is not JSON: {error}.") from error
    write_file(folder / FILE, text + b"\n")


def read(folder: Path) -> Manifest:
    """The manifest of a run folder."""
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise StoreError(f"{folder} is not a run: it has no {FILE}.") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot read: {error.strerror}.") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"{path}: damaged or not written by burnish: {error}.") from error


def is_ours(folder: Path) -> bool:
    """True where a folder's `config.json` has the keys of a manifest; other tools write such files."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes())
    except (OSError, msgspec.MsgspecError, RecursionError):
        return False
    return isinstance(found, dict) and {"config_hash", "data_hash", "origins"} <= found.keys()


def newest_weights(folder: Path) -> Path:
    """The newest checkpoint of a run's folder."""
    found = [path for path in (folder / "checkpoints").glob("step-*") if path.name[5:].isdigit()]
    if not found:
        raise UserError(
            f"run '{folder.name}' has no checkpoint yet; expected one after checkpoint.every steps "
            "or at the end."
        )
    return max(found, key=lambda path: int(path.name[5:]))


def now() -> str:
    """The moment in UTC, as text that sorts."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
