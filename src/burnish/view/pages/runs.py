"""Which runs may be looked at: names from a listing, never a path from a request.

runs = Runs(folder=Path("runs"))
runs.find("grpo-1f3a")       # the folder, or NotFound
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from burnish.errors import StoreError, UserError, did_you_mean
from burnish.intervals import interval_doubt
from burnish.metrics import main_reward, reward_parts
from burnish.store import manifest
from burnish.store.database import Database
from burnish.store.durable import is_held, store_errors
from burnish.store.manifest import Manifest
from burnish.store.reader import DATABASE, LOCK, RunReader, RunStatus, manifest_of

FRESH_S = 1.0
"""How long a listing of the folder is believed."""
SKIPPED = 50
"""Folders named as skipped; more of them are only counted."""
T = TypeVar("T")


Page = dict[str, Any]
"""A page of the viewer, or a piece of one, as the browser gets it in JSON."""


class NotFound(UserError):
    """What was asked for is not there."""


class Listing(NamedTuple):
    """The runs by key, and what else lay beside them."""

    folders: dict[str, Path]
    skipped: list[Page]
    skipped_total: int


class Runs:
    """The runs of one folder, or a chosen few."""

    def __init__(self, folder: Path | None = None, chosen: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.chosen = list(chosen)
        self._listing: Listing | None = None
        self._listed_at = 0.0
        self._lock = threading.Lock()

    def listing(self) -> Listing:
        """What is there now, at most a second old."""
        with self._lock:
            age = time.monotonic() - self._listed_at
            if self._listing is None or age > FRESH_S:
                self._listing = self._look()
                self._listed_at = time.monotonic()
            return self._listing

    def find(self, key: str) -> Path:
        """The folder of a run by its key."""
        folders = self.listing().folders
        if key not in folders:
            hint = did_you_mean(key, folders)
            raise NotFound(f"no run '{key}' here; the list of runs has {len(folders)}.{hint}")
        return folders[key]

    def _look(self) -> Listing:
        if self.chosen or self.folder is None or not self.folder.is_dir():
            return Listing(keyed(self.chosen), [], 0)
        with store_errors(f"list the runs of {self.folder}", self.folder):
            entries = sorted(path for path in self.folder.iterdir() if path.is_dir())
        why = {entry: _why_not(entry) for entry in entries}
        skipped = [
            {"name": readable(entry.name), "line": line}
            for entry, line in why.items()
            if line and not entry.name.startswith(".")
        ]
        runs = [entry for entry, line in why.items() if not line]
        return Listing(keyed(runs), skipped[:SKIPPED], len(skipped))


def paged(found: list[T], after: int, limit: int) -> tuple[list[T], int | None]:
    """The next `limit` of a list behind the first `after`, and the `after` of the page to come."""
    end = after + limit
    return found[after:end], end if end < len(found) else None


def readable(name: str) -> str:
    """A file's name as valid Unicode; bytes that are none become question marks."""
    return name.encode("utf-8", "replace").decode()


def keyed(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders under their names; a namesake from another place gets `~2`."""
    keyed: dict[str, Path] = {}
    for folder in folders:
        name = readable(folder.resolve().name)
        key, count = name, 1
        while key in keyed:
            count += 1
            key = f"{name}~{count}"
        keyed[key] = folder
    return keyed


def _why_not(folder: Path) -> str:
    """One line why a folder is not a run; empty where it is one, damaged or not."""
    has_database = (folder / DATABASE).is_file()
    if (folder / manifest.FILE).is_file():
        if has_database or manifest.is_ours(folder):
            return ""
        return f"not a run: its {manifest.FILE} was not written by burnish"
    if has_database:
        return f"half made: it has {DATABASE} and no {manifest.FILE} yet"
    return "not a run: it has neither of a run's files"


QUERY_S = 3.0
"""How long the queries of one request may take together."""
INSTRUCTIONS = 20_000
"""Virtual machine steps of SQLite between two looks at the clock: well under a millisecond."""
CACHE_KIB = 4096


class TookTooLong(StoreError):
    """A question was given up at its deadline."""


class TimedDatabase(Database):
    """A read-only connection whose queries stop at a deadline."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path, read_only=True)
        self._seconds = seconds
        deadline = time.monotonic() + seconds
        self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._connection.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)

    @contextlib.contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        """As in `Database`; a query stopped by the deadline raises `TookTooLong`."""
        try:
            with super().failing(doing):
                yield
        except StoreError as error:
            if getattr(error.__cause__, "sqlite_errorname", "") != "SQLITE_INTERRUPT":
                raise
            raise TookTooLong(
                f"{self.path.parent.name}: given up after {self._seconds:g} s of reading; ask "
                "for less, or wait for the search index."
            ) from error


@contextlib.contextmanager
def open_run(folder: Path, seconds: float = QUERY_S) -> Iterator[RunReader]:
    """The run in a folder, whose queries may take so many seconds together."""
    about = manifest_of(folder)
    database = TimedDatabase(folder / DATABASE, seconds)
    try:
        yield RunReader(folder, database, about)
    finally:
        database.close()


SPARK = 40
"""Points of the small curve in a list."""


class Lines:
    """The list of runs, with what did not change remembered."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._known: dict[tuple[str, Path], tuple[Page, Any]] = {}
        self._lock = threading.Lock()

    def all(self) -> Page:
        """Every run, oldest first, and the folders that are none."""
        found = self._runs.listing()
        with self._lock:
            known = self._known
        lines = {}
        for run in found.folders.items():
            stamp = _stamp(run[1])
            line, seen = known.get(run, ({}, None))
            lines[run] = (line if seen == stamp else run_line(*run), stamp)
        with self._lock:
            self._known = lines
        ordered = sorted(
            (line for line, _ in lines.values()), key=lambda one: (one["created"], one["name"])
        )
        return {"runs": ordered, "skipped": found.skipped, "skipped_total": found.skipped_total}


def _stamp(folder: Path) -> tuple[Any, ...]:
    """What changes when the run does."""
    marks: list[Any] = [is_held(folder / LOCK)]
    for name in (DATABASE, f"{DATABASE}-wal", manifest.FILE):
        with contextlib.suppress(OSError):
            found = (folder / name).stat()
            marks.append((name, found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(marks)


_UNREAD: Page = {
    **{"status": RunStatus.UNREADABLE, "reason": "", "live": False, "recipe": "", "model": ""},
    **{"created": "", "steps": 0, "planned": None, "samples": 0, "reward": None},
    **{"held_out_first": None, "held_out_last": None},
}


def run_line(key: str, folder: Path) -> Page:
    """One run's line; a damaged run says what is wrong with it."""
    line = {"key": key, "name": readable(folder.resolve().name), "problem": ""}
    try:
        with open_run(folder) as run:
            scores = held_out(run)
            steps, samples = counts(run)
            end = run.end()
            planned = setting(run.about, "steps")
            return line | {
                "status": end.status,
                "reason": readable(end.reason),
                "live": end.status is RunStatus.RUNNING,
                "recipe": run.about.recipe,
                "model": str(setting(run.about, "model.path") or ""),
                "created": run.about.created,
                "steps": steps,
                "planned": planned if isinstance(planned, int) else None,
                "samples": samples,
                "reward": _reward(run),
                "held_out_first": scores[0] if scores else None,
                "held_out_last": scores[-1] if len(scores) > 1 else None,
            }
    except StoreError as error:
        return line | _UNREAD | {"problem": str(error)}


def counts(run: RunReader) -> tuple[int, int]:
    """Completed steps, and samples from the small tables that count them."""
    ((rollouts,),) = run.query("SELECT coalesce(sum(samples), 0) FROM rollouts")
    ((evaluated,),) = run.query("SELECT coalesce(sum(samples), 0) FROM evaluations")
    return run.steps_done(), rollouts + evaluated


def held_out(run: RunReader) -> list[Page]:
    query = (
        "SELECT step, json_extract(summary, '$.score') FROM evaluations "
        "WHERE name = 'held_out' ORDER BY step"
    )
    return [score for step, text in run.query(query) if (score := score_of(step, text)) is not None]


def score_of(step: int, text: str | None) -> Page | None:
    """`[value, low, high, prompts]` as a record; None where there is no such score."""
    try:
        value, low, high, prompts = msgspec.json.decode(
            text or "", type=tuple[float, float, float, int]
        )
    except (msgspec.MsgspecError, TypeError):
        return None
    ends = {"value": value, "low": low, "high": high, "prompts": prompts}
    return {"step": step, **ends, "doubt": interval_doubt(low, high, prompts)}


def reward_name(run: RunReader) -> str | None:
    """The metric that stands for the reward: the total, or the only part's mean."""
    query = "SELECT name FROM metrics WHERE step = (SELECT min(step) FROM metrics)"
    return main_reward(row[0] for row in run.query(query))


def setting(about: Manifest, key: str) -> Any:
    """The value of a dotted key of the config; None where the run has none."""
    if key in about.config:
        return about.config[key]
    value: Any = about.config
    for word in key.split("."):
        if not isinstance(value, dict) or word not in value:
            return None
        value = value[word]
    return value


def _reward(run: RunReader) -> Page | None:
    """The training reward at both ends of a run, a few points between, and its last parts."""
    name = reward_name(run)
    if name is None:
        return None
    ((first, last),) = run.query("SELECT min(step), max(step) FROM metrics")
    count = min(SPARK, last - first + 1)
    steps = {last} | {first + round(i * (last - first) / (count - 1)) for i in range(count - 1)}
    marks = ", ".join("?" * len(steps))
    query = f"SELECT value FROM metrics WHERE step IN ({marks}) AND name = ? ORDER BY step"
    values = [value for (value,) in run.query(query, [*steps, name])]
    known = [value for value in values if value is not None] or [None]
    query = "SELECT name, value FROM metrics WHERE step = ? AND value IS NOT NULL"
    found: dict[str, float] = dict(run.query(query, (last,)))
    parts = reward_parts(found)
    return {
        "name": name,
        "first": known[0],
        "last": known[-1],
        "spark": values,
        "parts": {part: found[own] for part, own in parts.items()} if len(parts) > 1 else {},
    }
