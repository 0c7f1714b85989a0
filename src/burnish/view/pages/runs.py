"""Which runs may be looked at: names from a listing, never a path from a request.

runs = Runs(folder=Path("runs"))
runs.find("grpo-1f3a")       # the folder, or NotFound
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from burnish.errors import StoreError, UserError, did_you_mean
from burnish.intervals import interval_doubt
from burnish.metrics import main_reward, reward_parts
from burnish.store import manifest
from burnish.store.database import Database
from burnish.store.durable import is_held
from burnish.store.manifest import FILE, Manifest
from burnish.store.reader import DATABASE, LOCK, RunReader, RunStatus

FRESH_S = 1.0
"""How long a listing of the folder is believed."""
SKIPPED = 50
"""Folders named as skipped; more of them are only counted."""


class NotFound(UserError):
    """What was asked for is not there."""


class Skipped(Struct, frozen=True):
    """A folder that is no readable run, and why."""

    name: str
    line: str


class Listing(NamedTuple):
    """The runs by key, and what else lay beside them."""

    folders: dict[str, Path]
    skipped: list[Skipped]
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
        if self.chosen:
            return Listing(keyed(self.chosen), [], 0)
        if self.folder is None or not self.folder.is_dir():
            return Listing({}, [], 0)
        try:
            entries = sorted(path for path in self.folder.iterdir() if path.is_dir())
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot list the runs: {error.strerror}.") from error
        runs, skipped = [], []
        for entry in entries:
            line = _why_not(entry)
            if line is None:
                runs.append(entry)
            elif not entry.name.startswith("."):
                skipped.append(Skipped(readable(entry.name), line))
        return Listing(keyed(runs), skipped[:SKIPPED], len(skipped))


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


def _why_not(folder: Path) -> str | None:
    """One line why a folder is not a run; None where it is one, damaged or not."""
    has_database = (folder / DATABASE).is_file()
    if (folder / manifest.FILE).is_file():
        if has_database or manifest.is_ours(folder):
            return None
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
        self._deadline = time.monotonic() + seconds
        self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._connection.set_progress_handler(self._is_late, INSTRUCTIONS)

    @contextlib.contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        """As in `Database`; a query stopped by the deadline raises `TookTooLong`."""
        try:
            with super().failing(doing):
                yield
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error) and _name(cause) == "SQLITE_INTERRUPT":
                raise TookTooLong(
                    f"{self.path.parent.name}: given up after {self._seconds:g} s of reading; ask "
                    "for less, or wait for the search index."
                ) from error
            raise

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


@contextlib.contextmanager
def open_run(folder: Path, seconds: float = QUERY_S) -> Iterator[RunReader]:
    """The run in a folder, whose queries may take so many seconds together."""
    about = manifest.read(folder)
    path = folder / DATABASE
    if not path.is_file():
        raise StoreError(f"{folder} has no {DATABASE}; the run's samples are gone.")
    database = TimedDatabase(path, seconds)
    try:
        yield RunReader(folder, database, about)
    finally:
        database.close()


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


SPARK = 40
"""Points of the small curve in a list."""


class Score(Struct, frozen=True):
    step: int
    value: float
    low: float
    high: float
    prompts: int
    doubt: str = ""
    """Why the interval should not be believed, such as `too few to say`."""


class RewardLine(Struct, frozen=True):
    """The training reward at both ends of a run, and a few points between."""

    name: str
    first: float | None
    last: float | None
    spark: list[float | None]
    parts: dict[str, float]
    """The last mean of each reward, where there are several."""


class RunLine(Struct, frozen=True, kw_only=True):
    key: str
    name: str
    status: RunStatus
    live: bool = False
    recipe: str = ""
    model: str = ""
    created: str = ""
    steps: int = 0
    planned: int | None = None
    samples: int = 0
    reward: RewardLine | None = None
    held_out_first: Score | None = None
    held_out_last: Score | None = None
    reason: str = ""
    """Why it stopped or crashed."""
    problem: str = ""


class RunList(Struct, frozen=True):
    """Every run, oldest first, and the folders that are none."""

    runs: list[RunLine]
    skipped: list[Skipped]
    skipped_total: int


_Stamp = tuple[Any, ...]


class Lines:
    """The list of runs, with what did not change remembered."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._known: dict[Path, tuple[_Stamp, RunLine]] = {}
        self._lock = threading.Lock()

    def all(self) -> RunList:
        found = self._runs.listing()
        lines = [self._line(key, folder) for key, folder in found.folders.items()]
        with self._lock:
            kept = set(found.folders.values())
            self._known = {k: v for k, v in self._known.items() if k in kept}
        ordered = sorted(lines, key=lambda line: (line.created, line.name))
        return RunList(ordered, found.skipped, found.skipped_total)

    def _line(self, key: str, folder: Path) -> RunLine:
        stamp = _stamp(folder)
        with self._lock:
            known = self._known.get(folder)
        if known is not None and known[0] == stamp and known[1].key == key:
            return known[1]
        line = run_line(key, folder)
        with self._lock:
            self._known[folder] = (stamp, line)
        return line


def run_line(key: str, folder: Path) -> RunLine:
    """One run's line; a damaged run says what is wrong with it."""
    name = readable(folder.resolve().name)
    try:
        with open_run(folder) as run:
            return _read(key, name, run)
    except StoreError as error:
        return RunLine(key=key, name=name, status=RunStatus.UNREADABLE, problem=str(error))


def _read(key: str, name: str, run: RunReader) -> RunLine:
    scores = held_out(run)
    steps, samples = counts(run)
    end = run.end()
    status = end.status
    return RunLine(
        key=key,
        name=name,
        status=status,
        reason=readable(end.reason),
        live=status is RunStatus.RUNNING,
        recipe=run.about.recipe,
        model=str(setting(run.about, "model.path") or ""),
        created=run.about.created,
        steps=steps,
        planned=planned(run.about),
        samples=samples,
        reward=_reward(run),
        held_out_first=scores[0] if scores else None,
        held_out_last=scores[-1] if len(scores) > 1 else None,
    )


def counts(run: RunReader) -> tuple[int, int]:
    """Completed steps, and samples from the small tables that count them."""
    ((rollouts,),) = run.query("SELECT coalesce(sum(samples), 0) FROM rollouts")
    ((evaluated,),) = run.query("SELECT coalesce(sum(samples), 0) FROM evaluations")
    return run.steps_done(), rollouts + evaluated


def held_out(run: RunReader) -> list[Score]:
    query = (
        "SELECT step, json_extract(summary, '$.score') FROM evaluations "
        "WHERE name = 'held_out' ORDER BY step"
    )
    return [score for step, text in run.query(query) if (score := score_of(step, text)) is not None]


def score_of(step: int, text: str | None) -> Score | None:
    """`[value, low, high, prompts]` as a record; None where there is no such score."""
    import msgspec

    if not isinstance(text, str):
        return None
    try:
        value, low, high, prompts = msgspec.json.decode(text, type=tuple[float, float, float, int])
    except msgspec.MsgspecError:
        return None
    return Score(step, value, low, high, prompts, interval_doubt(low, high, prompts))


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


def planned(about: Manifest) -> int | None:
    steps = setting(about, "steps")
    return steps if isinstance(steps, int) else None


def _reward(run: RunReader) -> RewardLine | None:
    name = reward_name(run)
    if name is None:
        return None
    ((first, last),) = run.query("SELECT min(step), max(step) FROM metrics")
    values = [value for _, value in _at(run, name, _spread(first, last))]
    known = [value for value in values if value is not None]
    parts = _parts(run, last)
    ends = [known[0], known[-1]] if known else [None, None]
    return RewardLine(name, ends[0], ends[1], values, parts)


def _parts(run: RunReader, step: int) -> dict[str, float]:
    query = "SELECT name, value FROM metrics WHERE step = ? AND value IS NOT NULL"
    found: dict[str, float] = dict(run.query(query, (step,)))
    parts = reward_parts(found)
    return {part: found[name] for part, name in parts.items()} if len(parts) > 1 else {}


def _at(run: RunReader, name: str, steps: Sequence[int]) -> list[tuple[int, float | None]]:
    marks = ", ".join("?" * len(steps))
    query = f"SELECT step, value FROM metrics WHERE step IN ({marks}) AND name = ? ORDER BY step"
    return list(run.query(query, [*steps, name]))


def _spread(first: int, last: int) -> list[int]:
    """At most `SPARK` steps from the first to the last, evenly."""
    count = min(SPARK, last - first + 1)
    if count <= 1:
        return [last]
    return sorted({first + round(i * (last - first) / (count - 1)) for i in range(count)})


def _stamp(folder: Path) -> _Stamp:
    """What changes when the run does."""
    marks: list[Any] = [is_held(folder / LOCK)]
    for name in (DATABASE, f"{DATABASE}-wal", FILE):
        try:
            found = (folder / name).stat()
            marks.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            marks.append(None)
    return tuple(marks)
