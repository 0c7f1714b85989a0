"""The two consoles, and how numbers look in them.

Colours vanish where the output is not a terminal or NO_COLOR is set; rich sees to that.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.text import Text

from burnish.intervals import interval_text
from burnish.metrics import RATIO_MAX, SURROGATE
from burnish.texts import duration, safe, share as share

if TYPE_CHECKING:
    from rich.progress import Progress


class PipedConsole(Console):
    """A console whose reader may leave (head, less).

    A command that only shows something ends then, as rich has it; one that works (`goes_on`) goes on
    and writes no more.
    """

    goes_on = False

    def on_broken_pipe(self) -> None:
        if not self.goes_on:
            super().on_broken_pipe()
        self.quiet = True
        # What the stream still holds goes nowhere, at the end of the process too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        if not self.stderr:
            err.print("nobody reads the output any more; the work goes on", soft_wrap=True)


out = PipedConsole(highlight=False)
err = PipedConsole(stderr=True, highlight=False)

AUTHOR_STYLES = {"template": "bright_black", "prompt": "cyan", "model": "green", "tool": "magenta"}
STATUS_STYLES = {
    "running": "cyan",
    "finished": "green",
    "stopped": "yellow",
    "crashed": "red",
    "unreadable": "red",
}


def say(message: str = "", style: str = "") -> None:
    """One line on stdout, never wrapped by us: logs and pipes keep lines whole."""
    out.print(Text(safe(message), style=style), soft_wrap=True)


def warn(message: str) -> None:
    """One line on stderr about something that goes on."""
    err.print(Text(f"warning: {one_line(message)}", style="yellow"), soft_wrap=True)


def complain(message: str) -> None:
    """One line on stderr for each mistake that ends the command here."""
    for line in message.splitlines() or [""]:
        err.print(Text(f"burnish: {safe(line)}", style="red"), soft_wrap=True)


_OBEYED = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def emit_json(value: Any) -> None:
    """One JSON object on one line of stdout."""
    import msgspec

    text = msgspec.json.encode(value, enc_hook=str).decode()
    # What JSON leaves as it is and a terminal obeys: C1 controls and marks that turn the direction.
    text = _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        out.file.write(text + "\n")
        out.file.flush()
    except BrokenPipeError:
        out.on_broken_pipe()


def one_line(text: str) -> str:
    """`safe`, with line breaks written out, so that it cannot fill a screen."""
    return safe(text.replace("\r\n", "\n").rstrip("\n").replace("\n", "\\n"))


def number(value: float | None, digits: int = 3) -> str:
    """A number as people read it; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    size = abs(value)
    if size != 0 and (size < 10**-digits or size >= 1e5):
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def interval(estimate: Sequence[Any] | None, *, signed: bool = False) -> str:
    """A mean with its 95 % interval, as `0.320 [0.237, 0.417]`, and what speaks against it."""
    if estimate is None:
        return "no score"
    value, low, high, size = estimate
    return interval_text(value, low, high, int(size), signed=signed)


def size(count: float) -> str:
    """Bytes as `512 B`, `1.2 MiB`, `3.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def count(number_of: float) -> str:
    """A large count as `115 k`, `134.5 M`, `7.0 B`."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number_of >= limit:
            return f"{number_of / limit:.{0 if unit == 'k' else 1}f} {unit}"
    return f"{number_of:.0f}"


def surrogate_text(metrics: Mapping[str, float | None]) -> str:
    """The surrogate, where it says something.

    With one update a step every ratio is 1 and the surrogate is 0 whatever is being learned.
    """
    on_policy = metrics.get(RATIO_MAX) == 1.0
    return "-" if on_policy else number(metrics.get(SURROGATE), 4)


EVERY_S = 5.0
"""Between two lines of progress where the output is no terminal."""


class Reporter:
    """A bar in a terminal, else a line every few seconds, on stderr; nothing where it is `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._bar: Progress | None = None
        self._start = time.monotonic()
        # A terminal shows the bar at the first call; a log waits, as quick work needs no line.
        self._last = 0.0 if err.is_terminal else self._start

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        is_soon = now - self._last < (0.1 if err.is_terminal else EVERY_S)
        if self.quiet or (is_soon and (done < total or not err.is_terminal)):
            return
        self._last = now
        if not err.is_terminal:
            left = (now - self._start) / max(done, 1) * (total - done)
            ahead = f", about {duration(left)} left" if 0 < done < total else ""
            err.print(f"{what} {100 * done // max(total, 1)} %{ahead}", soft_wrap=True)
            return
        if self._bar is None:
            from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=err, transient=True)
            self._bar.start()
            self._bar.add_task(what, total=total)
        (task,) = self._bar.task_ids
        self._bar.update(task, description=what, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
