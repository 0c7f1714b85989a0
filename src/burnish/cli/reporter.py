"""Progress of work that is counted, for commands that take a while."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from burnish.cli.console import err

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY_S = 5.0
"""Between two lines of progress where the output is no terminal."""


class Reporter:
    """A bar in a terminal, else a line every few seconds, on stderr."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        # A terminal shows the bar at the first call; a log waits, as quick work needs no line.
        self._last = 0.0 if err.is_terminal else time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < (0.1 if err.is_terminal else EVERY_S) and done < total:
            return
        if not err.is_terminal:
            if now - self._last >= EVERY_S:
                err.print(f"{what} {100 * done // max(total, 1)} %")
                self._last = now
            return
        self._last = now
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=err, transient=True)
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done, total=total)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
