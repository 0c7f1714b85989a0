"""`burnish show`: which part of a run is asked for, as text or as JSON."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from burnish.cli.console import emit_json, say
from burnish.cli.groups import print_list, print_step
from burnish.cli.sample import print_sample
from burnish.cli.summary import print_summary, summary_record
from burnish.errors import UserError, did_you_mean
from burnish.store import RunStore, StoredSample, find_run, list_runs


class Query(NamedTuple):
    """The flags of `burnish show`."""

    step: int | None = None
    sample: str = ""
    split: str = ""
    worst: int = 0
    best: int = 0
    failed: int = 0
    as_json: bool = False

    @property
    def wants_list(self) -> bool:
        return bool(self.worst or self.best or self.failed)


def show(folder: Path, reference: str, query: Query) -> int:
    """Show a run, one of its steps or one of its samples."""
    with RunStore.open(_find(folder, reference), read_only=True) as store:
        if query.sample:
            found = store.sample(query.sample)
            if query.as_json:
                _emit([found])
            else:
                print_sample(store, found)
        elif query.wants_list:
            _show_list(store, query)
        elif query.step is not None or query.split:
            _show_step(store, query)
        elif query.as_json:
            emit_json(summary_record(store))
        else:
            print_summary(store)
    return 0


def _find(folder: Path, reference: str) -> Path:
    if reference:
        return find_run(folder, reference)
    runs = list_runs(folder)
    if not runs:
        raise UserError(f"{folder} holds no runs. Start one: burnish train")
    return runs[-1].folder


def _show_step(store: RunStore, query: Query) -> None:
    _check_split(store, query.split)
    step = query.step
    if step is None:
        last = next(reversed([s.step for s in store.samples(split=query.split)]), None)
        step = last if last is not None else 0
    samples = list(store.samples(step=step, split=query.split or None))
    if not query.split:
        samples = [s for s in samples if not s.split.startswith("eval:")]
    if not samples:
        steps = store.steps()
        has = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has no steps yet"
        raise UserError(f"run '{store.name}' has no samples of step {step}; {has}.")
    if query.as_json:
        _emit(samples)
    else:
        print_step(store, step, samples)


def _show_list(store: RunStore, query: Query) -> None:
    _check_split(store, query.split)

    def candidates(**more: Any) -> Iterator[StoredSample]:
        return store.samples(step=query.step, split=query.split or None, **more)

    def value(sample: StoredSample) -> float:
        return sample.reward.value if sample.reward.value is not None else 0.0

    lists: dict[str, list[StoredSample]] = {}
    if query.worst:
        lists["lowest rewards"] = heapq.nsmallest(query.worst, candidates(status="ok"), value)
    if query.best:
        lists["highest rewards"] = heapq.nlargest(query.best, candidates(status="ok"), value)
    if query.failed:
        without = (s for s in candidates() if s.reward.value is None)
        lists["rewards without a value"] = [
            s for s, _ in zip(without, range(query.failed), strict=False)
        ]
    for title, samples in lists.items():
        if query.as_json:
            _emit(samples)
        elif samples:
            print_list(title, samples)
        else:
            say(f"{title}: none")


def _check_split(store: RunStore, split: str) -> None:
    known = store.summary().samples
    if split and split not in known:
        raise UserError(
            f"run '{store.name}' has no split '{split}'; expected one of "
            f"{', '.join(known) or 'none yet'}.{did_you_mean(split, known)}"
        )


def _emit(samples: list[StoredSample]) -> None:
    for sample in samples:
        emit_json({"id": sample.id, **msgspec.to_builtins(sample)})
