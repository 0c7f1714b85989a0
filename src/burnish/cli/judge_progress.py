"""How far a judge is: a bar on a terminal, lines in a log, nothing when quiet.

budget = WatchedBudget(calls=500)
with Progress(len(items), calls, "judging", budget) as step:
    step(judged.is_valid)               # one more row; replies are heard from the budget
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from burnish.cli.console import count, duration, err
from burnish.lm.meter import Cost
from burnish.rewards.judges.budget import Budget

EACH_ROW = 20
"""Up to this many rows get a line each in a log; of more, every tenth part does."""
SILENCE_S = 30.0
"""No longer than this, or than one row takes, is a log silent."""


class WatchedBudget(Budget):
    """A budget that tells of every reply as it comes."""

    heard: Callable[[], None] | None = None

    def settle(self, paid: Cost, held: Cost, *, is_estimated: bool = False) -> None:
        super().settle(paid, held, is_estimated=is_estimated)
        if self.heard is not None:
            self.heard()


class Progress:
    """Rows that are done and calls that were answered, from the moment the asking begins."""

    def __init__(
        self,
        rows: int,
        calls: int,
        what: str,
        budget: Budget,
        *,
        unit: str = "rows",
        quiet: bool = False,
    ) -> None:
        """`calls` is what a forecast expects; repairs of unreadable replies come on top."""
        self.rows, self.calls, self.what, self.unit, self.budget = rows, calls, what, unit, budget
        self.quiet = quiet or not rows
        self.done = self.failed = self.replies = 0
        self.start = self.told = perf_counter()
        self.bar: Bar | None = None

    def __enter__(self) -> Callable[[bool], None]:
        if self.quiet:
            return self.step
        self.start = self.told = perf_counter()
        if isinstance(self.budget, WatchedBudget):
            self.budget.heard = self._reply
        if err.is_terminal:
            self.bar = _bar(self.unit)
            self.bar.start()
            self.bar.add_task(self.what, total=self.rows, calls=self._calls())
        else:
            self._tell(f"{self.what} 0/{self.rows} {self.unit}")
        return self.step

    def __exit__(self, *_: object) -> None:
        if isinstance(self.budget, WatchedBudget):
            self.budget.heard = None
        if self.bar is not None:
            self.bar.stop()

    def step(self, is_valid: bool) -> None:
        """One more row is done."""
        self.done += 1
        self.failed += not is_valid
        if self.bar is not None:
            told = f"{self.what}, {self.failed} without a verdict" if self.failed else self.what
            self.bar.update(self.bar.task_ids[0], advance=1, description=told)
        elif not self.quiet and self._is_due():
            spent_s = perf_counter() - self.start
            left_s = spent_s / self.done * (self.rows - self.done)
            ahead = f", about {duration(left_s)} left" if self.done < self.rows else ""
            self._tell(
                f"{self.what} {self.done}/{self.rows} {self.unit}, {self.failed} without a verdict, "
                f"{self.replies} replies in {duration(spent_s)}{ahead}"
            )

    def _is_due(self) -> bool:
        part = 1 if self.rows <= EACH_ROW else self.rows // 10
        is_late = perf_counter() - self.told > SILENCE_S
        return is_late or self.done % part == 0 or self.done == self.rows

    def _reply(self) -> None:
        self.replies += 1
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], calls=self._calls())
        elif self.replies == 1:
            self._tell(
                first_reply(perf_counter() - self.start, self.budget.spent.calls, self.calls)
            )

    def _calls(self) -> str:
        return f"{count(self.replies)} of about {count(max(self.replies, self.calls))} calls"

    def _tell(self, message: str) -> None:
        self.told = perf_counter()
        err.print(message, soft_wrap=True)


def first_reply(seconds: float, sent: int, calls: int) -> str:
    """What the first reply tells of the rest, when `sent` of the forecast's `calls` were sent.

    Calls that were sent together come back together, or nearly: what is left takes as many rounds
    of such calls.
    """
    said = f"first reply after {duration(seconds)}"
    waiting = calls - sent
    if waiting > 0:
        ahead = duration(math.ceil(waiting / max(1, sent)) * seconds)
        rest = f"{calls - 1} calls" if calls > 2 else "call"
        return f"{said}; about {ahead} for the remaining {rest}"
    others = sent - 1
    if others > 0:
        return f"{said}; {others} more {'call is' if others == 1 else 'calls are'} under way"
    return said


def _bar(unit: str) -> Bar:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}, {{task.fields[calls]}}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Bar(*columns, console=err, transient=True)
