"""`config.json`: what a run was asked to do, where each value came from, and with which versions.

It is written once, last of all that makes a run folder, so a folder that has it is a whole run.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from burnish.errors import StoreError, UserError
from burnish.store.durable import WriterLock, read_record, write_file
from burnish.texts import safe

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
    versions = {"python": platform.python_version()}
    for name in ("burnish", "torch", "transformers"):
        versions[name] = "not installed"
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return Manifest(
        recipe=recipe,
        created=now(),
        config_hash=config_hash,
        data_hash=data_hash,
        versions=versions,
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
    if not (folder / FILE).exists():
        raise StoreError(f"{folder} is not a run: it has no {FILE}.")
    return read_record(folder / FILE, Manifest)


def is_ours(folder: Path) -> bool:
    """True where a folder's `config.json` has the keys of a manifest; other tools write such files."""
    try:
        found = read_record(folder / FILE, dict[str, Any])
    except StoreError:
        return False
    return {"config_hash", "data_hash", "origins"} <= found.keys()


def newest_weights(folder: Path) -> Path:
    """The newest checkpoint of a run's folder."""
    found = [path for path in (folder / "checkpoints").glob("step-*") if path.name[5:].isdigit()]
    if not found:
        raise UserError(f"run '{folder.name}' has no checkpoint yet; see checkpoint.every.")
    return max(found, key=lambda path: int(path.name[5:]))


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


SUFFIX = ".sweep.json"


class SweepRun(Struct, kw_only=True):
    """One run of a sweep."""

    name: str
    """Of its folder, which lies beside the sweep's file."""
    settings: dict[str, Any]
    """The varied settings by dotted key, without the seed."""
    seed: int
    words: list[str]
    """What `burnish train` is given to start or continue it."""
    failure: str = ""
    """Why it failed the last time; empty where it did not."""


class SweepRecord(Struct, kw_only=True):
    """A sweep: what is varied, and the runs in the order they are started."""

    name: str
    recipe: str
    created: str
    grid: dict[str, list[Any]]
    seeds: list[int]
    runs: list[SweepRun]
    sampled: int | None = None
    """How many combinations of the grid were drawn; None where all are run."""


def sweep_path(folder: Path, name: str) -> Path:
    """Where the sweep of this name is stored in a folder of runs."""
    if not re.fullmatch(r"[\w][\w.+=-]{0,199}", name):
        expected = "letters, digits and ._+=-, at most 200, without slashes"
        raise UserError(f"the sweep's name: got {safe(repr(name))}, expected {expected}.")
    return folder / f"{name}{SUFFIX}"


def lock_sweep(folder: Path, name: str) -> WriterLock:
    """The right to train a sweep, until it is released; refused while another process has it."""
    return WriterLock(
        sweep_path(folder, name).with_suffix(".lock"),
        f"sweep '{name}' is being trained by {{holder}}. Wait for it or stop it, then the same call "
        "continues it; burnish sweep ... --list shows where it stands.",
    )


def write_sweep(folder: Path, record: SweepRecord) -> None:
    """Store a sweep whole, in place of what was known of it before."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    write_file(sweep_path(folder, record.name), text)


def read_sweep(path: Path) -> SweepRecord:
    return read_record(path, SweepRecord)


def list_sweeps(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


def find_sweep(folder: Path, reference: str) -> Path | None:
    """The file of the sweep that a name or a path means; None where there is none."""
    as_path = Path(reference)
    if reference.endswith(SUFFIX) and as_path.is_file():
        return as_path
    named = folder / f"{reference.removesuffix(SUFFIX)}{SUFFIX}"
    return named if named in list_sweeps(folder) else None


CALIBRATION = "calibration.json"
"""The file's name in the run's folder."""


class StartRewards(Struct, frozen=True):
    """Mean and deviation of each reward on the start model's own answers."""

    answers: int
    names: tuple[str, ...]
    mean: list[float]
    deviation: list[Annotated[float, Meta(gt=0.0)]]
    counts: list[Annotated[int, Meta(ge=0)]]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.mean) == len(self.deviation) == len(self.counts):
            raise ValueError("expected a mean, a deviation above 0 and a count a reward")

    def columns(self, names: Sequence[str]) -> tuple[list[float], list[float], list[int]]:
        """Mean, deviation and count of these rewards, in their order."""
        places = [self.names.index(name) for name in names]
        return (
            [self.mean[place] for place in places],
            [self.deviation[place] for place in places],
            [self.counts[place] for place in places],
        )


def read_start_rewards(folder: Path) -> StartRewards | None:
    """What the run in this folder measured; None where it measured nothing."""
    path = folder / CALIBRATION
    return read_record(path, StartRewards) if path.is_file() else None


def write_start_rewards(folder: Path, measured: StartRewards) -> None:
    """Keep it: whole, or not at all."""
    write_file(folder / CALIBRATION, msgspec.json.encode(measured))
