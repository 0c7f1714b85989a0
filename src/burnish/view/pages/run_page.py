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

from burnish.metrics import ENTROPY, GROUPS, LENGTH, USEFUL, known
from burnish.numbers import grouped
from burnish.step_warnings import WARNING
from burnish.store.reader import STAGE, RunReader, RunStatus
from burnish.view.index import Progress
from burnish.view.pages.pairs import has_pairs
from burnish.view.pages.questions import has_questions
from burnish.view.pages.runs import (
    Page,
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


def metrics_page(folder: Path, names: Sequence[str], points: int, since: int | None) -> Page:
    """The curves asked for, or all of them."""
    with open_run(folder) as run:
        curves = curves_of(folder)
        curves.update(run)
        scores = [s for s in held_out(run) if since is None or s["step"] > since]
        found = run.evaluations("held_out")
    stored = curves.names()
    asked = [name for name in names if name in stored] if names else stored
    lines = {name: thinned(curves.of(name, since), points) for name in asked}
    # A score is a `reward`, or a `loss` (lower is better).
    measure = str(found[-1].summary.get("measure", "reward")) if found else "reward"
    return {
        "names": stored,
        "last_step": curves.last_step(),
        "curves": lines,
        "held_out": scores,
        "about": {
            name: {"title": it.title or name, "unit": it.unit, "meaning": it.meaning}
            for name in stored
            if (it := known(name)) is not None
        },
        "held_out_measure": measure,
    }


def thinned(line: Line, points: int) -> Page:
    """At most about `points` points: the first, the last, and each bucket's lowest and highest.

    Buckets are of equal width in steps, so peaks stay where they are and none is lost.
    """
    steps, values = line
    if len(steps) <= points:
        return {"steps": list(steps), "values": list(values), "of": len(steps), "thinned": False}
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
    return {
        "steps": [steps[i] for i in places],
        "values": [values[i] for i in places],
        "of": len(steps),
        "thinned": True,
    }


EVENTS = 50
"""Events that the page of a run shows at once: the newest."""
SETTING_BYTES = 20_000
"""A longer value of the config is cut."""


STEP_COLUMNS = {"useful": USEFUL, "groups": GROUPS, "length": LENGTH, "entropy": ENTROPY}
"""Metrics in the list of steps, beside the reward."""
SESSION = ("id", "started", "ended", "status", "summary")
EVENT = ("id", "time", "step", "kind", "message", "data")


def run_page(key: str, folder: Path, index: Progress) -> Page:
    """Everything about a run that is not a sample or a curve."""
    with open_run(folder) as run:
        about = run.about
        ((first, last),) = run.query("SELECT min(step), max(step) FROM rollouts")
        sessions = "FROM sessions ORDER BY id DESC LIMIT 100"
        # Older warnings too: other events must not push them out of the page.
        newest = "SELECT id FROM events ORDER BY id DESC LIMIT ?"
        warned = "SELECT id FROM events WHERE kind = ? ORDER BY id DESC LIMIT ?"
        events = (
            f"FROM events WHERE id IN (SELECT * FROM ({newest}) UNION SELECT * FROM ({warned}))"
        )
        return {
            "line": run_line(key, folder),
            "folder": readable(str(folder)),
            "config_hash": about.config_hash,
            "data_hash": about.data_hash,
            "versions": about.versions,
            "platform": about.platform,
            "config": [
                {"key": name, "value": _short(value), "origin": about.origins.get(name, "")}
                for name, value in about.config.items()
            ],
            "sessions": _records(run, SESSION, sessions)[::-1],
            "evaluations": _evaluations(run),
            "first_step": first,
            "last_step": last,
            "events": _records(run, EVENT, f"{events} ORDER BY id", EVENTS, WARNING, EVENTS),
            "events_total": _count(run, "events"),
            "checkpoints": _folders(folder / "checkpoints"),
            "crashes": _folders(folder / "crash"),
            "has_pairs": has_pairs(run),
            "has_questions": has_questions(run),
            "index": index,
        }


def pulse(folder: Path, index: Progress) -> Page:
    """A few numbers that move while a run trains; cheap to ask for."""
    with open_run(folder) as run:
        steps, samples = counts(run)
        status = run.status()
        ((last,),) = run.query("SELECT max(step) FROM rollouts")
        ((metrics,),) = run.query("SELECT max(step) FROM metrics")
        return {
            "status": status,
            "live": status is RunStatus.RUNNING,
            "steps": steps,
            "last_step": last,
            "samples": samples,
            "metrics_step": metrics,
            "events": _count(run, "events"),
            "evaluations": _count(run, "evaluations"),
            "index": index,
        }


def events_page(folder: Path, after: int, limit: int) -> Page:
    """Events behind the one with this id."""
    with open_run(folder) as run:
        rest = "FROM events WHERE id > ? ORDER BY id LIMIT ?"
        found = _records(run, EVENT, rest, after, limit + 1)
        total = _count(run, "events")
    shown = found[:limit]
    behind = shown[-1]["id"] if len(found) > limit else None
    return {"events": shown, "total": total, "next": behind}


def steps_page(folder: Path, before: int | None, limit: int) -> Page:
    """Steps before the one of this number, newest first; `next` goes into `before`.

    Rollouts of the stored step n - 1 and evaluations after n steps are both of step n; 0 is what
    was there before training. Steps without answers have metrics.
    """
    query = (
        "SELECT number, sum(samples), max(time) FROM ("
        "SELECT step + 1 AS number, samples, time FROM rollouts "
        "UNION ALL SELECT DISTINCT step + 1, 0, '' FROM metrics WHERE name NOT LIKE ? "
        "UNION ALL SELECT step, 0, time FROM evaluations) "
        "WHERE number < ? GROUP BY number ORDER BY number DESC LIMIT ?"
    )
    with open_run(folder) as run:
        border = before if before is not None else sys.maxsize
        rows = list(run.query(query, (f"{STAGE}%", border, limit + 1)))
        shown = rows[:limit]
        columns = {"reward": reward_name(run) or "", **STEP_COLUMNS}
        steps, names = [number - 1 for number, _, _ in shown], list(columns.values())
        query = (
            f"SELECT step, name, value FROM metrics WHERE step IN ({', '.join('?' * len(steps))}) "
            f"AND name IN ({', '.join('?' * len(names))})"
        )
        values = {(at, name): value for at, name, value in run.query(query, [*steps, *names])}
        evaluated = grouped((one["step"], one) for one in _evaluations(run))
        total = len(run.steps())
    lines = [
        {
            "number": number,
            "step": number - 1 if number else None,
            "time": time,
            "samples": samples,
            "evaluations": evaluated.get(number, []),
            **{field: values.get((number - 1, name)) for field, name in columns.items()},
        }
        for number, samples, time in shown
    ]
    return {"steps": lines, "total": total, "next": shown[-1][0] if len(rows) > limit else None}


def _records(run: RunReader, fields: Sequence[str], rest: str, *values: int | str) -> list[Page]:
    """Rows as records; the last field is JSON, and stays a text where it is damaged."""
    found = []
    for *row, text in run.query(f"SELECT {', '.join(fields)} {rest}", values):
        try:
            last = msgspec.json.decode(text)
        except msgspec.MsgspecError:
            last = text
        found.append(dict(zip(fields, (*row, last), strict=True)))
    return found


def _evaluations(run: RunReader) -> list[Page]:
    query = (
        "SELECT step, name, samples, time, json_extract(summary, '$.score'), "
        "coalesce(json_extract(summary, '$.measure'), 'reward') FROM evaluations "
        "ORDER BY rowid DESC LIMIT 2000"
    )
    fields = ("step", "name", "samples", "time", "score", "measure")
    found = [dict(zip(fields, row, strict=True)) for row in run.query(query)]
    return [one | {"score": score_of(one["step"], one["score"])} for one in reversed(found)]


def _count(run: RunReader, table: str) -> int:
    ((count,),) = run.query(f"SELECT count(*) FROM {table}")
    return int(count)


def _folders(place: Path) -> list[str]:
    try:
        return sorted(readable(entry.name) for entry in place.iterdir() if entry.is_dir())
    except OSError:
        return []


def _short(value: Any) -> Any:
    """A value of the config, or its beginning where it is very long."""
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    if len(text) <= SETTING_BYTES:
        return value
    return f"{text[:SETTING_BYTES]} ... ({len(text)} characters)"
