"""Curves of a run, kept in memory step by step and thinned for the screen.

curves = Curves()
curves.update(run)
thinned(curves.of("reward/total"), points=400)
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from burnish.metrics import known
from burnish.store.reader import RunReader
from burnish.view.pages.listing import Score, held_out
from burnish.view.pages.runs import open_run

RUNS = 16
"""Runs whose curves stay in memory."""


class Line(NamedTuple):
    """The points of one metric that have a value, by step."""

    steps: Sequence[int]
    values: Sequence[float]


class Curve(Struct, frozen=True):
    """One metric for the screen."""

    steps: list[int]
    values: list[float]
    of: int
    """Points that there are."""
    thinned: bool


class About(Struct, frozen=True):
    """What a metric measures."""

    title: str
    unit: str
    meaning: str


class MetricsPage(Struct, frozen=True):
    """What the curves page shows."""

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
        """Every metric that was ever stored."""
        with self._lock:
            return sorted(self._lines)

    def last_step(self) -> int | None:
        """The newest step with a metric."""
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
    """What the catalogue says of these metrics."""
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
