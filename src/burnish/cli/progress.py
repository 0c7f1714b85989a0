"""How a training run looks while it works: a live table, plain lines, JSON lines or nothing.

Useful groups come first, and the loss is never a lone rounded number: its parts, the gradient's
norm, the entropy and the clipped share say whether something is learned.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from burnish.cli.console import (
    duration,
    emit_json,
    interval,
    number,
    one_line,
    out,
    say,
    share,
    surrogate_text,
    warn,
)
from burnish.cli.report import print_header, print_report
from burnish.cli.watch import Watch

if TYPE_CHECKING:
    from burnish.training.events import Event, StepDone

ROWS = 10
"""Steps that the live table shows."""


class View:
    """Shows events; a context manager because a live display must be put away."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Put away what is on the screen."""

    def show(self, event: Event) -> None:
        """Show one event; a view without a method for its type passes it over."""
        handler = getattr(self, f"on_{type(event).__name__.lower()}", None)
        if handler is not None:
            handler(event)


class QuietView(View):
    """Only the result."""

    def on_finished(self, event: Any) -> None:
        print_report(event, brief=True)


class JsonView(View):
    """One object a line."""

    def show(self, event: Event) -> None:
        name = {"StepDone": "step", "HeldOut": "held_out"}
        kind = type(event).__name__
        emit_json({"event": name.get(kind, kind.lower()), **plain(event)})


class LineView(View):
    """One line a step, for logs and pipes."""

    def __init__(self, notes: tuple[str, ...], budget: int, part: str = "") -> None:
        self.notes = notes
        self.part = part
        self.watch = Watch(budget)

    def on_started(self, event: Any) -> None:
        print_header(event, self.notes)

    def on_imitated(self, event: Any) -> None:
        if (event.step + 1) % max(event.steps // 10, 1) == 0:
            done = f"{event.step + 1}/{event.steps}"
            say(f"warm start {done}  loss of the demonstrations {number(event.loss, 3)}")

    def on_calibrated(self, event: Any) -> None:
        parts = ", ".join(
            f"{one_line(name)} {number(mean)} (sd {number(event.deviation[name])})"
            for name, mean in event.mean.items()
        )
        say(f"rewards of the start model on {event.count} answers: {parts}")
        for name in event.constant:
            warn(f"reward '{one_line(name)}' was the same for all of them: any change is clipped.")

    def on_stagebegun(self, event: Any) -> None:
        stage = f"{event.stage + 1} of {event.stages}"
        say(f"curriculum: stage {stage}, {event.tasks} tasks, from step {event.step}", style="bold")

    def on_stepdone(self, event: StepDone) -> None:
        say(step_line(event))
        for warning in self.watch.see(event):
            warn(warning)

    def on_heldout(self, event: Any) -> None:
        say(held_out_line(event, self.part), style="bold")

    def on_finished(self, event: Any) -> None:
        self.close()
        print_report(event)


class LiveView(LineView):
    """The last steps as a table that stays in its place."""

    def __init__(self, notes: tuple[str, ...], budget: int, part: str = "") -> None:
        super().__init__(notes, budget, part)
        self.steps: deque[StepDone] = deque(maxlen=ROWS)
        self.live: Live | None = None

    def on_stepdone(self, event: StepDone) -> None:
        self.steps.append(event)
        if self.live is None:
            self.live = Live(console=out, refresh_per_second=4, transient=False)
            self.live.start()
        for warning in self.watch.see(event):
            # On the live display's own console, or it would be torn.
            say(f"warning: {warning}", style="yellow")
        self.live.update(step_table(list(self.steps), out.width), refresh=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def view_for(trainer: Any, *, quiet: bool, as_json: bool) -> View:
    """The view that fits the flags and the terminal; only the main process shows anything."""
    if not trainer.world.is_main:
        return View()
    if as_json:
        return JsonView()
    if quiet:
        return QuietView()
    kind = LiveView if out.is_terminal else LineView
    config = trainer.config
    return kind(tuple(trainer.tasks.notes), config.rollout.max_tokens, config.evaluation.part)


# --- one step as a line and as a row


class Column(NamedTuple):
    """A number of a step: its title, its text, and how early it goes where space is short."""

    title: str
    text: Callable[[StepDone], str]
    rank: int


COLUMNS = (
    Column("step", lambda e: f"{e.step}/{e.steps - 1}", 0),
    Column("useful", lambda e: f"{e.useful_groups}/{e.groups}", 0),
    Column("reward", lambda e: reward_text(e.metrics), 0),
    Column("kept", lambda e: kept_text(e.metrics), 4),
    Column("surrogate", lambda e: surrogate_text(e.metrics), 3),
    Column("kl", lambda e: number(e.metrics.get("loss/kl"), 4), 4),
    Column("other terms", lambda e: other_terms(e.metrics), 8),
    Column("gradient", lambda e: number(e.metrics.get("optimiser/gradient_norm")), 2),
    Column("entropy", lambda e: number(e.metrics.get("policy/entropy"), 2), 5),
    Column("clipped", lambda e: share(e.metrics.get("policy/clipped_share")), 6),
    Column("length", lambda e: number(e.metrics.get("length/mean"), 1), 1),
    Column("cut", lambda e: share(e.metrics.get("length/truncated_share")), 7),
    Column("tokens/s", lambda e: "reread" if e.reused else f"{e.tokens_per_s:.0f}", 5),
    Column("left", lambda e: duration(e.remaining_s), 1),
)


def step_line(event: StepDone) -> str:
    """A step as one line of text; numbers that it does not have are left out."""
    cells = [(c.title, c.text(event)) for c in COLUMNS]
    return "  ".join(f"{title} {text}" for title, text in cells if text not in ("", "-"))


def step_table(events: list[StepDone], width: int) -> Table:
    """The last steps as a table of at most `width` columns."""
    shown = [c for c in COLUMNS if any(c.text(e) not in ("", "-") for e in events)]
    while len(shown) > 3 and _width(shown, events) > width:
        shown.remove(max(shown, key=lambda c: c.rank))
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for column in shown:
        style = "bold" if column.title == "useful" else ""
        table.add_column(column.title, justify="right", style=style, no_wrap=True)
    for event in events:
        table.add_row(*(Text(c.text(event)) for c in shown))
    return table


def _width(columns: list[Column], events: list[StepDone]) -> int:
    widths = [max(len(c.title), *(len(c.text(e)) for e in events)) for c in columns]
    return sum(widths) + 2 * len(widths)


def reward_text(metrics: Mapping[str, float]) -> str:
    """`0.53 (correct 0.43, format 0.10)`: the total and the mean of each part."""
    means = {
        key.removeprefix("reward/").removesuffix("/mean"): value
        for key, value in metrics.items()
        if key.startswith("reward/") and key.endswith("/mean")
    }
    total = metrics.get("reward/total")
    parts = ", ".join(f"{one_line(name)} {number(value)}" for name, value in means.items())
    if total is None:
        return parts or "-"
    return f"{number(total)} ({parts})" if len(means) > 1 else number(total)


def kept_text(metrics: Mapping[str, float]) -> str:
    """The share of answers that the recipe trains on, where it leaves some out."""
    kept = metrics.get("kept", 1.0)
    return share(kept) if kept < 1 else "-"


def other_terms(metrics: Mapping[str, float]) -> str:
    """Auxiliary terms of the loss beside the surrogate and the KL.

    `loss/sft/coefficient` and its like say something about a term and are none.
    """
    known = ("total", "surrogate", "kl")
    terms = {k.removeprefix("loss/"): v for k, v in metrics.items() if k.startswith("loss/")}
    others = {
        one_line(k): v
        for k, v in terms.items()
        if k not in known and ("/" not in k or k.partition("/")[0] not in terms)
    }
    return ", ".join(f"{name} {number(value, 4)}" for name, value in others.items())


def held_out_line(event: Any, part: str = "") -> str:
    """An evaluation with its interval, and what could not be scored."""
    what = f"held out ({part})" if part else "held out"
    failed = event.count - event.valid
    missing = f"; {failed} could not be scored" if failed else ""
    when = "before training" if event.step == 0 else f"after {event.step} steps"
    return f"{what} {when}: {interval(event.score)} of {event.count} prompts{missing}"


def plain(value: Any) -> Any:
    """Events as JSON-able values: estimates as objects, NaN as null."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {k: plain(v) for k, v in value._asdict().items()}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
