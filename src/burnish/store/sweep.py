"""The file of a sweep: its grid and its runs, beside the runs themselves.

    record = read_sweep(Path("runs/tiny-1f3a9c02.sweep.json"))
    [run.name for run in record.runs]

The runs are ordinary ones. The file says which of them belong together, which settings were varied,
and why a run that failed did.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from burnish.errors import StoreError, UserError
from burnish.store.durable import write_file
from burnish.store.lock import WriterLock
from burnish.texts import safe

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
    is_name = isinstance(name, str) and re.fullmatch(r"[\w][\w.+=-]{0,199}", name)
    if not is_name:
        raise UserError(
            f"the sweep's name: got {safe(repr(name))}, expected letters, digits and ._+=-, at most "
            "200, without slashes."
        )
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
    """The sweep in a file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SweepRecord)
    except OSError as error:
        raise StoreError(f"{path}: cannot read the sweep: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path}: not a sweep: {error}. The command that started the sweep writes it again."
        ) from error


def list_sweeps(folder: Path) -> list[Path]:
    """The files of the sweeps in a folder of runs, by name."""
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


def find_sweep(folder: Path, reference: str) -> Path | None:
    """The file of the sweep that a name or a path means; None where there is none."""
    as_path = Path(reference)
    if reference.endswith(SUFFIX) and as_path.is_file():
        return as_path
    named = folder / f"{reference.removesuffix(SUFFIX)}{SUFFIX}"
    return named if named in list_sweeps(folder) else None
