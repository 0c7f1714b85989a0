"""A training run in a Jupyter notebook: one output that is updated in its place."""

from __future__ import annotations

import html
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from burnish.api.run import sparkline
from burnish.cli.progress import COLUMNS, LineView
from burnish.metrics import main_reward
from burnish.step_warnings import Watch
from burnish.texts import shown_path

if TYPE_CHECKING:
    from burnish.training.events import Event, StepDone

ROWS = 10
"""Steps that the table shows."""
PAUSE_S = 0.25
"""Between two updates: each is sent to a browser."""


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process; a terminal's IPython is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookView(LineView):
    """The last steps, the held-out scores and the curve of the reward as HTML."""

    def __init__(self, notes: tuple[str, ...], watch: Watch, part: str = "") -> None:
        super().__init__(notes, watch, part)
        self.steps: deque[StepDone] = deque(maxlen=ROWS)
        self.reward: list[tuple[float, float]] = []
        self.lines: list[str] = []
        self.warnings: deque[str] = deque(maxlen=3)
        self.title = ""
        self.time = ""
        self.evaluating = ""
        self._handle: Any = None
        self._shown_at = 0.0

    def show(self, event: Event) -> None:
        super().show(event)
        is_last = type(event).__name__ == "Finished"
        if is_last or time.monotonic() - self._shown_at >= PAUSE_S:
            self.update()

    def on_started(self, event: Any) -> None:
        self.title = f"{event.folder.name}: {event.model}, {event.device}, {event.dtype}"
        self.lines += [f"data: {note}" for note in self.notes]

    def line(self, text: str, style: str = "") -> None:
        self.evaluating = ""
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def on_stepdone(self, event: StepDone) -> None:
        self.steps.append(event)
        name = main_reward(event.metrics)
        if not event.stage and name is not None and name in event.metrics:
            self.reward.append((event.step + 1, event.metrics[name]))
        self.warnings.extend(self.watch.see(event))

    def on_timeleft(self, event: Any) -> None:
        self.time = str(event)

    def on_evaluating(self, event: Any) -> None:
        self.evaluating = f"held out: {event}"

    def on_finished(self, event: Any) -> None:
        end = f": {event.reason}" if event.reason else ""
        folder = shown_path(event.folder)
        self.time = ""
        self.lines.append(f"{event.status}{end}; {event.seconds:.0f} s; {folder}")

    def close(self) -> None:
        if self.title:
            self.update()

    def update(self) -> None:
        """Show what is known by now."""
        from IPython.display import HTML, display

        self._shown_at = time.monotonic()
        page = HTML(self.page())
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)

    def page(self) -> str:
        """The output as HTML."""
        lines = "".join(
            f"<div>{html.escape(line)}</div>" for line in (*self.lines, self.evaluating)
        )
        warnings = "".join(
            f'<div style="color:#a15c00">warning: {html.escape(line)}</div>'
            for line in self.warnings
        )
        return (
            f"<div><b>{html.escape(self.title)}</b>{self._bar()}{sparkline(self.reward)}"
            f"{self._table()}{lines}{warnings}</div>"
        )

    def _bar(self) -> str:
        if not self.steps:
            return ""
        last = self.steps[-1]
        return (
            f'<div><progress value="{last.step + 1}" max="{last.steps}"></progress> '
            f"{html.escape(last.stage)} {last.step + 1} of {last.steps} steps"
            f"{html.escape(f'; {self.time}' if self.time else '')}</div>"
        )

    def _table(self) -> str:
        shown = [c for c in COLUMNS if any(c.text(e) not in ("", "-") for e in self.steps)]
        if not shown:
            return ""
        head = "".join(f"<th>{html.escape(column.title)}</th>" for column in shown)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(c.text(event))}</td>" for c in shown) + "</tr>"
            for event in self.steps
        )
        return f"<table><tr>{head}</tr>{rows}</table>"
