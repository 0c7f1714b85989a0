"""What this process waits for, in words: for the watchdog of a run and for its last words.

Whatever may wait says so with `waiting_for` and `advance`; nothing here waits, logs or writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MOST_SHOWN = 3


@dataclass(eq=False)
class Activity:
    """One thing that is waited for."""

    label: str
    unit: str
    total: int
    done: int = 0
    moved: float = field(default_factory=time.monotonic)

    def text(self) -> str:
        """`reward my_judge, 12 of 64 answers, 31 s`."""
        count = f", {self.done} of {self.total} {self.unit}" if self.total else ""
        return f"{self.label}{count}, {time.monotonic() - self.moved:.0f} s"


_lock = threading.Lock()  # invariant: the list does not change while it is walked
_open: list[Activity] = []
_moved = time.monotonic()
_observers: list[Callable[[Activity], None]] = []


@contextmanager
def observed(observer: Callable[[Activity], None]) -> Iterator[None]:
    """Inside, the observer is called with each activity that advances."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def told_every(
    seconds: float, tell: Callable[[Activity, float], None]
) -> Callable[[Activity], None]:
    """An observer that tells of what advances, at most every so many seconds.

    `tell` gets the activity and the seconds since the observer was made.
    """
    began = told = time.monotonic()

    def observer(activity: Activity) -> None:
        nonlocal told
        now = time.monotonic()
        if activity.total and now - told >= seconds:
            told = now
            tell(activity, now - began)

    return observer


@contextmanager
def waiting_for(label: str, unit: str = "", total: int = 0) -> Iterator[Activity]:
    """Inside, the process waits for what the label names; `total` is how many units it takes."""
    activity = Activity(label, unit, total)
    with _lock:
        _open.append(activity)
    moved()
    try:
        yield activity
    finally:
        with _lock:
            _open.remove(activity)
        moved()


def advance(label: str, count: int = 1) -> None:
    """So many more units of what a label names are done; nothing where nobody waits for it."""
    moved()
    with _lock:
        found = next((one for one in reversed(_open) if one.label == label), None)
        if found is None:
            return
        found.done += count
        found.moved = _moved
    for observer in tuple(_observers):
        observer(found)


def moved() -> None:
    """Something went on."""
    global _moved
    _moved = time.monotonic()


def quiet_s() -> float:
    """Seconds since anything moved."""
    return time.monotonic() - _moved


def current() -> list[str]:
    """What is not done yet, the newest first."""
    with _lock:
        waiting = [one for one in reversed(_open) if not one.total or one.done < one.total]
        return [one.text() for one in waiting[:MOST_SHOWN]]
