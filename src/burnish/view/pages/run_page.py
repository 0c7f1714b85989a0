"""One run: what it was asked to do, how it went, what it said; its pulse, steps and events."""

from __future__ import annotations

import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.grouping import grouped
from burnish.metrics import ENTROPY, GROUPS, LENGTH, USEFUL, known
from burnish.step_warnings import WARNING
from burnish.store.reader import STAGE, RunReader, RunStatus
from burnish.view.index.run_index import Progress
from burnish.view.pages.pairs import has_pairs
from burnish.view.pages.questions import has_questions
from burnish.view.pages.runs import (
    RunLine,
    Score,
    counts,
    held_out,
    open_run,
    readable,
    reward_name,
    run_line,
    score_of,
)

RUNS = 16
"""Runs whose curves stay in memory."""


class Line(NamedTuple):
    """The points of one metric that have a value, by step."""

    steps: Sequence[int]
    values: Sequence[float]


class Curve(Struct, frozen=True):
    steps: list[int]
    values: list[float]
    of: int
    """Points that there are."""
    thinned: bool


class About(Struct, frozen=True):
    title: str
    unit: str
    meaning: str


class MetricsPage(Struct, frozen=True):
    names: list[str]
    last_step: int | None
    curves: dict[str, Curve]
    held_out: list[Score]
    about: dict[str, About]
    """Unit and meaning of the metrics in `names` that the catalogue has."""
    held_out_measure: str = "reward"
    """What a held-out score is: `reward`, or `loss` (lower is better)."""


class Curves:
    """All metrics of one run. Only steps from the last known one on are read again."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[array[int], array[float]]] = {}
        self._last = -1
        self._started = ""
        self._lock = threading.Lock()
        """Held while the lines grow."""

    def update(self, run: RunReader) -> None:
        """Read what was stored since the last time."""
        with self._lock:
            started = run.about.created
            ((newest,),) = run.query("SELECT coalesce(max(step), -1) FROM metrics")
            if started != self._started or newest < self._last:
                self._lines, self._last, self._started = {}, -1, started
            # The last known step is read again: a step's numbers may come in two transactions.
            for steps, values in self._lines.values():
                while steps and steps[-1] >= self._last:
                    steps.pop()
                    values.pop()
            query = "SELECT name, step, value FROM metrics WHERE step >= ? ORDER BY step, name"
            for name, step, value in run.query(query, (self._last,)):
                line = self._lines.setdefault(name, (array("q"), array("d")))
                if value is not None:
                    line[0].append(step)
                    line[1].append(value)
            self._last = max(newest, self._last)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._lines)

    def last_step(self) -> int | None:
        return self._last if self._last >= 0 else None

    def of(self, name: str, since: int | None = None) -> Line:
        """The points of a metric, behind step `since`."""
        with self._lock:
            steps, values = self._lines.get(name, (array("q"), array("d")))
            start = 0 if since is None else bisect_right(steps, since)
            return Line(steps[start:], values[start:])


@lru_cache(RUNS)
def curves_of(folder: Path) -> Curves:
    """The curves of a run as far as they were read; `update` brings them up to date."""
    return Curves()


def metrics_page(folder: Path, names: Sequence[str], points: int, since: int | None) -> MetricsPage:
    """The curves asked for, or all of them."""
    with open_run(folder) as run:
        curves = curves_of(folder)
        curves.update(run)
        scores = [s for s in held_out(run) if since is None or s.step > since]
        found = run.evaluations("held_out")
    stored = curves.names()
    asked = [name for name in names if name in stored] if names else stored
    lines = {name: thinned(curves.of(name, since), points) for name in asked}
    measure = str(found[-1].summary.get("measure", "reward")) if found else "reward"
    return MetricsPage(stored, curves.last_step(), lines, scores, about(stored), measure)


def about(names: Sequence[str]) -> dict[str, About]:
    found = {name: known(name) for name in names}
    return {n: About(m.title or n, m.unit, m.meaning) for n, m in found.items() if m is not None}


def thinned(line: Line, points: int) -> Curve:
    """At most about `points` points: the first, the last, and each bucket's lowest and highest.

    Buckets are of equal width in steps, so peaks stay where they are and none is lost.
    """
    steps, values = line
    if len(steps) <= points:
        return Curve(list(steps), list(values), len(steps), thinned=False)
    buckets = max((points - 2) // 2, 1)
    first, last = steps[0], steps[-1]
    kept = {0, len(steps) - 1}
    start = 0
    for bucket in range(buckets):
        border = first + (bucket + 1) * (last - first + 1) / buckets
        end = len(steps) if bucket == buckets - 1 else bisect_left(steps, border, start)
        if end > start:
            inside = range(start, end)
            kept.add(min(inside, key=values.__getitem__))
            kept.add(max(inside, key=values.__getitem__))
        start = end
    places = sorted(kept)
    return Curve([steps[i] for i in places], [values[i] for i in places], len(steps), thinned=True)


EVENTS = 50
"""Events that the page of a run shows at once: the newest."""
SETTING_BYTES = 20_000
"""A longer value of the config is cut."""


STEP_COLUMNS = {"useful": USEFUL, "groups": GROUPS, "length": LENGTH, "entropy": ENTROPY}
"""Metrics in the list of steps, beside the reward."""


class Setting(Struct, frozen=True):
    key: str
    value: Any
    origin: str


class Session(Struct, frozen=True):
    id: int
    started: str
    ended: str | None
    status: str | None
    summary: Any


class EvaluationLine(Struct, frozen=True):
    step: int
    name: str
    samples: int
    time: str
    score: Score | None
    measure: str = "reward"
    """What the score is: `reward`, `accuracy`, `loss` or `bits_per_byte`."""


class EventLine(Struct, frozen=True):
    id: int
    time: str
    step: int | None
    kind: str
    message: str
    data: Any


class EventsPage(Struct, frozen=True):
    """Events in order; `next` goes into `after`."""

    events: list[EventLine]
    total: int
    next: int | None


class RunPage(Struct, frozen=True, kw_only=True):
    """Everything about a run that is not a sample or a curve."""

    line: RunLine
    folder: str
    config_hash: str
    data_hash: str
    versions: dict[str, str]
    platform: str
    config: list[Setting]
    sessions: list[Session]
    evaluations: list[EvaluationLine]
    first_step: int | None
    last_step: int | None
    events: list[EventLine]
    events_total: int
    checkpoints: list[str]
    crashes: list[str]
    has_pairs: bool
    """Held-out pairs of a reward model are stored."""
    has_questions: bool
    """Questions of search self-play are stored."""
    index: Progress


class Pulse(Struct, frozen=True):
    """A few numbers that move while a run trains; cheap to ask for."""

    status: RunStatus
    live: bool
    steps: int
    last_step: int | None
    samples: int
    metrics_step: int | None
    events: int
    evaluations: int
    index: Progress


class StepLine(Struct, frozen=True):
    """One step of the list of steps, with the evaluations that followed it."""

    number: int
    """As people count: 1 is the first step, 0 what was there before training."""
    step: int | None
    """As it is stored, from 0; null before training."""
    time: str
    samples: int
    reward: float | None
    useful: float | None
    groups: float | None
    length: float | None
    entropy: float | None
    evaluations: list[EvaluationLine]


class StepsPage(Struct, frozen=True):
    """Steps, newest first, and the start where it was evaluated; `next` goes into `before`."""

    steps: list[StepLine]
    total: int
    next: int | None


def run_page(key: str, folder: Path, index: Progress) -> RunPage:
    with open_run(folder) as run:
        about = run.about
        ((first, last),) = run.query("SELECT min(step), max(step) FROM rollouts")
        newest = _newest_events(run)
        return RunPage(
            line=run_line(key, folder),
            folder=readable(str(folder)),
            config_hash=about.config_hash,
            data_hash=about.data_hash,
            versions=about.versions,
            platform=about.platform,
            config=[
                Setting(name, _short(value), about.origins.get(name, ""))
                for name, value in about.config.items()
            ],
            sessions=_sessions(run),
            evaluations=_evaluations(run),
            first_step=first,
            last_step=last,
            events=newest,
            events_total=_count(run, "events"),
            checkpoints=_folders(folder / "checkpoints"),
            crashes=_folders(folder / "crash"),
            has_pairs=has_pairs(run),
            has_questions=has_questions(run),
            index=index,
        )


def pulse(folder: Path, index: Progress) -> Pulse:
    with open_run(folder) as run:
        steps, samples = counts(run)
        status = run.status()
        ((last,),) = run.query("SELECT max(step) FROM rollouts")
        ((metrics,),) = run.query("SELECT max(step) FROM metrics")
        return Pulse(
            status=status,
            live=status is RunStatus.RUNNING,
            steps=steps,
            last_step=last,
            samples=samples,
            metrics_step=metrics,
            events=_count(run, "events"),
            evaluations=_count(run, "evaluations"),
            index=index,
        )


def events_page(folder: Path, after: int, limit: int) -> EventsPage:
    """Events behind the one with this id."""
    with open_run(folder) as run:
        found = _events(run, "WHERE id > ? ORDER BY id LIMIT ?", (after, limit + 1))
        total = _count(run, "events")
    shown = found[:limit]
    return EventsPage(shown, total, shown[-1].id if len(found) > limit else None)


def steps_page(folder: Path, before: int | None, limit: int) -> StepsPage:
    """Steps before the one of this number, newest first.

    Rollouts of the stored step n - 1 and evaluations after n steps are both of step n.
    """
    with open_run(folder) as run:
        rows = _step_rows(run, before, limit + 1)
        shown = rows[:limit]
        columns = {"reward": reward_name(run) or "", **STEP_COLUMNS}
        numbers = _numbers(run, [number - 1 for number, _, _ in shown], list(columns.values()))
        evaluated = grouped((one.step, one) for one in _evaluations(run))
        total = len(run.steps())
    lines = [
        StepLine(
            number=number,
            step=number - 1 if number else None,
            time=time,
            samples=samples,
            evaluations=evaluated.get(number, []),
            **{field: numbers.get((number - 1, name)) for field, name in columns.items()},
        )
        for number, samples, time in shown
    ]
    return StepsPage(lines, total, shown[-1][0] if len(rows) > limit else None)


def _step_rows(run: RunReader, before: int | None, limit: int) -> list[tuple[int, int, str]]:
    """Number, answers and time of steps, newest first; steps without answers have metrics."""
    query = (
        "SELECT number, sum(samples), max(time) FROM ("
        "SELECT step + 1 AS number, samples, time FROM rollouts "
        "UNION ALL SELECT DISTINCT step + 1, 0, '' FROM metrics WHERE name NOT LIKE ? "
        "UNION ALL SELECT step, 0, time FROM evaluations) "
        "WHERE number < ? GROUP BY number ORDER BY number DESC LIMIT ?"
    )
    border = before if before is not None else sys.maxsize
    return [
        (n, samples, time) for n, samples, time in run.query(query, (f"{STAGE}%", border, limit))
    ]


def _numbers(run: RunReader, steps: list[int], names: list[str]) -> dict[tuple[int, str], float]:
    query = (
        f"SELECT step, name, value FROM metrics WHERE step IN ({_marks(steps)}) "
        f"AND name IN ({_marks(names)})"
    )
    return {(step, name): value for step, name, value in run.query(query, [*steps, *names])}


def _sessions(run: RunReader) -> list[Session]:
    query = "SELECT id, started, ended, status, summary FROM sessions ORDER BY id DESC LIMIT 100"
    return [Session(*[*row, _json(summary)]) for *row, summary in run.query(query)][::-1]


def _evaluations(run: RunReader) -> list[EvaluationLine]:
    query = (
        "SELECT step, name, samples, time, json_extract(summary, '$.score'), "
        "coalesce(json_extract(summary, '$.measure'), 'reward') FROM evaluations "
        "ORDER BY rowid DESC LIMIT 2000"
    )
    rows = run.query(query)
    return [
        EvaluationLine(*[*row, score_of(row[0], score), measure]) for *row, score, measure in rows
    ][::-1]


def _newest_events(run: RunReader) -> list[EventLine]:
    """The newest events, and older warnings: other events must not push them out of the page."""
    newest = "SELECT id FROM events ORDER BY id DESC LIMIT ?"
    warned = "SELECT id FROM events WHERE kind = ? ORDER BY id DESC LIMIT ?"
    where = f"WHERE id IN (SELECT * FROM ({newest}) UNION SELECT * FROM ({warned})) ORDER BY id"
    return _events(run, where, (EVENTS, WARNING, EVENTS))


def _events(run: RunReader, rest: str, values: tuple[int | str, ...]) -> list[EventLine]:
    query = f"SELECT id, time, step, kind, message, data FROM events {rest}"
    return [EventLine(*[*row, _json(data)]) for *row, data in run.query(query, values)]


def _count(run: RunReader, table: str) -> int:
    ((count,),) = run.query(f"SELECT count(*) FROM {table}")
    return int(count)


def _folders(place: Path) -> list[str]:
    try:
        return sorted(readable(entry.name) for entry in place.iterdir() if entry.is_dir())
    except OSError:
        return []


def _json(text: str) -> Any:
    """The value of a JSON cell; the text itself where it is damaged."""
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text


def _short(value: Any) -> Any:
    """A value of the config, or its beginning where it is very long."""
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    if len(text) <= SETTING_BYTES:
        return value
    return f"{text[:SETTING_BYTES]} ... ({len(text)} characters)"


def _marks(values: list[Any]) -> str:
    return ", ".join("?" * len(values))
