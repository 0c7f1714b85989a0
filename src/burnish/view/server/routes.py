"""Every route of the interface: its parameters, and the page that answers it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from starlette.datastructures import QueryParams

import burnish
from burnish.errors import UserError, did_you_mean
from burnish.media.waveform import SoundPicture, sound_picture
from burnish.records import Finish, Status
from burnish.store.blobs import Blobs
from burnish.view.audit import audit_run
from burnish.view.index import Filter, Indexer, Range, Scope, Signal, SortOrder
from burnish.view.pages.compared import compare_page, many_page, sweeps_page
from burnish.view.pages.groups import group_page, groups_page, prompt_page
from burnish.view.pages.judged import KINDS, JudgedFiles
from burnish.view.pages.pairs import HELD_OUT, OUTCOMES, SORTS as PAIR_SORTS, pairs_page
from burnish.view.pages.questions import SORTS as QUESTION_SORTS, questions_page
from burnish.view.pages.run_page import events_page, metrics_page, pulse, run_page, steps_page
from burnish.view.pages.runs import Lines, NotFound, Page, Runs, open_run, readable
from burnish.view.pages.sample_page import sample_page
from burnish.view.pages.search import Question, facets, search
from burnish.view.pages.skills import SkillFolders

PAGE = 50
MOST = 200
"""Rows of one page."""
TEXT = 1000
"""Characters of a parameter."""
WHOLE = 2**53


class Parameters:
    """What stands behind the question mark, closed to unknown names."""

    def __init__(self, query: QueryParams, known: Iterable[str]) -> None:
        self._query = query
        names = tuple(known)
        for name, value in query.multi_items():
            if name not in names:
                listed = ", ".join(names) or "none"
                hint = did_you_mean(name, names)
                raise UserError(f"unknown parameter '{name[:60]}'; expected {listed}.{hint}")
            if len(value) > TEXT:
                raise UserError(f"{name} has {len(value)} characters; expected at most {TEXT}.")

    def text(self, name: str, default: str = "") -> str:
        """A text; empty means absent."""
        return self._query.get(name) or default

    def needed(self, name: str) -> str:
        """A text that must be there."""
        if not (value := self.text(name)):
            raise UserError(f"the parameter '{name}' is missing.")
        return value

    def texts(self, name: str, allowed: Iterable[str] = ()) -> tuple[str, ...]:
        """All values of a parameter that may be repeated."""
        values = tuple(value for value in self._query.getlist(name) if value)
        known = tuple(allowed)
        for value in values:
            if known and value not in known:
                hint = did_you_mean(value, known)
                raise _unfit(name, value, f"one of {', '.join(known)}", hint)
        return values

    def one_of(self, name: str, allowed: Iterable[str], default: str) -> str:
        return (self.texts(name, allowed) or (default,))[-1]

    def whole(self, name: str, *, low: int = 0, high: int = WHOLE) -> int | None:
        """A whole number within limits."""
        text = self.text(name)
        with suppress(ValueError):
            if not text or low <= int(text) <= high:
                return int(text) if text else None
        raise _unfit(name, text, f"a whole number, {low} to {high}")

    def count(self, name: str, default: int, *, low: int = 0, high: int = WHOLE) -> int:
        """A whole number that always has a value."""
        value = self.whole(name, low=low, high=high)
        return default if value is None else value

    def limit(self) -> int:
        return self.count("limit", PAGE, low=1, high=MOST)

    def range(self, name: str) -> Range:
        """`name_min` and `name_max`."""
        ends: list[float | None] = []
        for key in (f"{name}_min", f"{name}_max"):
            text = self.text(key)
            try:
                ends.append(float(text) if text else None)
            except ValueError:
                raise _unfit(key, text, "a number") from None
            if not math.isfinite(ends[-1] or 0.0):
                raise _unfit(key, text, "a finite number")
        return Range(*ends)

    def flag(self, name: str) -> bool | None:
        """`1` or `0`; None where absent."""
        return {"1": True, "0": False, "": None}[self.one_of(name, ("1", "0"), "")]


def _unfit(name: str, value: str, expected: str, hint: str = "") -> UserError:
    return UserError(f"{name} is '{value[:60]}'; expected {expected}.{hint}")


POINTS = 400
MOST_POINTS = 2000
AUDIT_S = 30.0
PICTURES = 128
"""Waveforms and spectrograms that are kept, about 50 kB each."""
SORTS = ("step", "reward", "length", "advantage", "part")
RANGES = ("part", "step", "reward", "length", "advantage")
FILTERS = (
    *("q", "in", "split", "role", "status", "finish", "signal", "keep", "task", "part"),
    *(f"{name}_{end}" for name in RANGES for end in ("min", "max")),
    *("sort", "order", "after", "limit"),
)


class Viewer:
    """Everything that outlives a request."""

    def __init__(
        self, runs: Runs, results: Path | None = None, skills: SkillFolders | None = None
    ) -> None:
        self.runs = runs
        self.skills = skills or SkillFolders(beside=runs.folder)
        self.lines = Lines(runs)
        self.indexer = Indexer()
        self.judged = JudgedFiles(results)
        self.auditing = threading.Lock()
        """Held by the one audit that is being made: it reads a good part of a run."""

    def close(self) -> None:
        self.indexer.close()


class At(NamedTuple):
    """One request: who is asked, what for, and where."""

    viewer: Viewer
    asked: Parameters
    path: dict[str, str]

    @property
    def run(self) -> Path:
        """The folder of the run in the path."""
        return self.viewer.runs.find(self.path["run"])

    @property
    def page(self) -> dict[str, int]:
        """What was shown before, and rows of this page."""
        return {"after": self.asked.count("after", 0), "limit": self.asked.limit()}

    @property
    def points(self) -> int:
        return self.asked.count("points", POINTS, low=4, high=MOST_POINTS)


class Endpoint(NamedTuple):
    """A path, the parameters it knows, and what answers it."""

    path: str
    known: tuple[str, ...]
    answer: Callable[[At], Page | Struct]


def _about(at: At) -> Page:
    folder, results = at.viewer.runs.folder, at.viewer.judged.folder
    return {
        "version": burnish.__version__,
        "folder": "" if folder is None else readable(str(folder)),
        "results": "" if results is None else readable(str(results)),
        "runs": len(at.viewer.runs.listing().folders),
        "statuses": list(Status),
        "signals": list(Signal),
    }


def question(asked: Parameters) -> Question:
    return Question(
        filter=Filter(
            split=asked.texts("split"),
            role=asked.texts("role"),
            status=asked.texts("status", Status),
            finish=asked.texts("finish", Finish),
            signal=asked.texts("signal", Signal),
            task=tuple(filter(None, [asked.text("task")])),
            keep=asked.flag("keep"),
            step=asked.range("step"),
            reward=asked.range("reward"),
            length=asked.range("length"),
            advantage=asked.range("advantage"),
            part=asked.text("part"),
            value=asked.range("part"),
        ),
        order=SortOrder(
            asked.one_of("sort", SORTS, "step"),
            asked.one_of("order", ("desc", "asc"), "desc") == "desc",
        ),
        text=asked.text("q"),
        scope=Scope(asked.one_of("in", Scope, "all")),
        after=asked.text("after"),
        limit=asked.limit(),
    )


def _groups(at: At) -> Page:
    step = at.asked.whole("step")
    if step is None:
        with open_run(at.run) as run:
            step = run.last_step() or 0
    signal = at.asked.one_of("signal", Signal, "")
    return groups_page(at.run, step, at.asked.text("split"), signal, **at.page)


def _pairs(at: At) -> Page:
    return pairs_page(
        at.run,
        step=at.asked.whole("step"),
        split=at.asked.text("split", HELD_OUT),
        sort=at.asked.one_of("sort", PAIR_SORTS, "wrong"),
        outcome=at.asked.one_of("outcome", OUTCOMES, ""),
        **at.page,
    )


def _prompt(at: At) -> Page:
    asked = at.asked
    split, before = asked.text("split"), asked.whole("before")
    return prompt_page(at.run, asked.needed("task"), split, before, asked.limit())


def _compare(at: At) -> Page:
    a, b = at.asked.needed("a"), at.asked.needed("b")
    if a == b:
        raise UserError(f"run '{a}' is compared with itself; expected two different runs.")
    return compare_page(
        (a, at.viewer.runs.find(a)),
        (b, at.viewer.runs.find(b)),
        step=at.asked.whole("step"),
        names=at.asked.texts("name"),
        points=at.points,
        **at.page,
    )


def _many(at: At) -> Page:
    return many_page(
        at.viewer.runs,
        named=at.asked.texts("run"),
        sweep=at.asked.text("sweep"),
        baseline=at.asked.text("baseline"),
        step=at.asked.whole("step"),
        names=at.asked.texts("name"),
        points=at.points,
        each=bool(at.asked.flag("each")),
    )


def _audit(at: At) -> Page:
    with at.viewer.auditing, open_run(at.run, AUDIT_S) as run:
        return {"available": True, "line": "", "audit": audit_run(run)}


def _bench_items(at: At) -> Page:
    return at.viewer.judged.items(
        at.path["bench"],
        kind=at.asked.one_of("kind", KINDS, ""),
        judge=at.asked.text("judge"),
        subset=at.asked.text("subset"),
        text=at.asked.text("q"),
        **at.page,
    )


def _sound(at: At) -> SoundPicture:
    """The waveform and the spectrogram of a sound of a run."""
    sha256 = at.path["sha256"]
    return _picture_of(media_of(at.run, sha256).folder, sha256)


def media_of(folder: Path, sha256: str) -> Blobs:
    """The media of a run, where it has this one."""
    blobs = Blobs(folder / "blobs")
    try:
        is_here = blobs.holds(sha256)
    except ValueError as error:
        raise UserError(str(error)) from None
    if not is_here:
        raise NotFound(f"this run has no image or sound {sha256[:12]}.")
    return blobs


@lru_cache(PICTURES)
def _picture_of(folder: Path, sha256: str) -> SoundPicture:
    """Drawn once: the bytes behind a hash do not change."""
    return sound_picture(Blobs(folder).bytes_of(sha256))


ENDPOINTS = (
    Endpoint("/about", (), _about),
    Endpoint("/runs", (), lambda at: at.viewer.lines.all()),
    Endpoint(
        "/runs/{run}",
        (),
        lambda at: run_page(at.path["run"], at.run, at.viewer.indexer.want(at.run).progress),
    ),
    Endpoint(
        "/runs/{run}/pulse",
        (),
        lambda at: pulse(at.run, at.viewer.indexer.want(at.run).progress),
    ),
    Endpoint("/runs/{run}/events", ("after", "limit"), lambda at: events_page(at.run, **at.page)),
    Endpoint(
        "/runs/{run}/metrics",
        ("name", "points", "since"),
        lambda at: metrics_page(
            at.run, at.asked.texts("name"), at.points, at.asked.whole("since", low=-1)
        ),
    ),
    Endpoint(
        "/runs/{run}/steps",
        ("before", "limit"),
        lambda at: steps_page(at.run, at.asked.whole("before"), at.asked.limit()),
    ),
    Endpoint("/runs/{run}/facets", (), lambda at: facets(at.viewer.indexer, at.run)),
    Endpoint(
        "/runs/{run}/samples",
        FILTERS,
        lambda at: search(at.viewer.indexer, at.run, question(at.asked)),
    ),
    Endpoint("/runs/{run}/groups", ("step", "split", "signal", "after", "limit"), _groups),
    Endpoint(
        "/runs/{run}/group",
        ("step", "key", "split"),
        lambda at: group_page(
            at.run, at.asked.count("step", 0), at.asked.needed("key"), at.asked.text("split")
        ),
    ),
    Endpoint(
        "/runs/{run}/sample",
        ("id", "tokens_from"),
        lambda at: sample_page(at.run, at.asked.needed("id"), at.asked.count("tokens_from", 0)),
    ),
    Endpoint("/runs/{run}/blobs/{sha256}/picture", (), _sound),
    Endpoint("/runs/{run}/pairs", ("step", "split", "sort", "outcome", "after", "limit"), _pairs),
    Endpoint(
        "/runs/{run}/questions",
        ("sort", "after", "limit"),
        lambda at: questions_page(
            at.run, sort=at.asked.one_of("sort", QUESTION_SORTS, "newest"), **at.page
        ),
    ),
    Endpoint("/runs/{run}/prompt", ("task", "split", "before", "limit"), _prompt),
    Endpoint("/runs/{run}/audit", (), _audit),
    Endpoint("/compare", ("a", "b", "step", "name", "points", "after", "limit"), _compare),
    Endpoint(
        "/compare/runs", ("run", "sweep", "baseline", "step", "name", "points", "each"), _many
    ),
    Endpoint("/sweeps", (), lambda at: sweeps_page(at.viewer.runs)),
    Endpoint("/skills", (), lambda at: at.viewer.skills.listing()),
    Endpoint("/skills/{skill}", (), lambda at: at.viewer.skills.page(at.path["skill"])),
    Endpoint("/benches", (), lambda at: at.viewer.judged.listing()),
    Endpoint("/benches/{bench}", (), lambda at: at.viewer.judged.page(at.path["bench"])),
    Endpoint(
        "/benches/{bench}/items",
        ("kind", "judge", "subset", "q", "after", "limit"),
        _bench_items,
    ),
)
