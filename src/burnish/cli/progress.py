"""How a training run looks while it works: a live table, plain lines, JSON lines or nothing.

The loss is never a lone rounded number: its parts, the gradient's norm, the entropy and the clipped
share say whether something is learned.
"""

from __future__ import annotations

import dataclasses
import html
import io
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from burnish.cli.console import (
    count,
    emit_json,
    interval,
    number,
    one_line,
    out,
    say,
    share,
    size,
    surrogate_text,
    warn,
)
from burnish.cli.drawing import print_curves
from burnish.cli.runs import MEASURES, raised_line, setting
from burnish.errors import BurnishError
from burnish.metrics import MISMATCH
from burnish.step_warnings import Watch, watch_of
from burnish.store import Manifest, RunStore
from burnish.texts import counted, duration, run_word, shown_path
from burnish.view.curves import curves_of, draw_picture

if TYPE_CHECKING:
    from burnish.training.events import Event, StepDone


ROWS = 10
"""Steps that the live table shows."""
ROUNDING = 1e-4
"""Nats a token that two ways to compute one log-prob may differ by."""


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
        name = {"StepDone": "step", "HeldOut": "held_out", "TimeLeft": "time_left"}
        kind = type(event).__name__
        emit_json({"event": name.get(kind, kind.lower()), **plain(event)})


class LineView(View):
    """One line a step, for logs and pipes."""

    def __init__(self, notes: tuple[str, ...], watch: Watch, part: str = "") -> None:
        self.notes = notes
        self.part = part
        self.watch = watch

    def line(self, text: str, style: str = "") -> None:
        """One line of what happened."""
        say(text, style=style)

    def warn(self, text: str) -> None:
        """What may have gone wrong."""
        warn(text)

    def on_started(self, event: Any) -> None:
        print_header(event, self.notes)

    def on_calibrated(self, event: Any) -> None:
        parts = ", ".join(
            f"{one_line(name)} {number(mean)} (sd {number(event.deviation[name])})"
            for name, mean in event.mean.items()
        )
        self.line(f"rewards of the start model on {event.count} answers: {parts}")
        for name in event.constant:
            self.warn(
                f"reward '{one_line(name)}' was the same for all of them: any change is clipped."
            )

    def on_preparing(self, event: Any) -> None:
        say(f"          {event}")

    def on_prepared(self, event: Any) -> None:
        self.line(f"{event.what:<9} {one_line(event.line)}")

    def on_stagebegun(self, event: Any) -> None:
        stage = f"{event.stage + 1} of {event.stages}"
        self.line(
            f"curriculum: stage {stage}, {event.tasks} tasks, from step {event.step + 1}",
            style="bold",
        )

    def on_stepdone(self, event: StepDone) -> None:
        # A stage has many quick steps: a tenth of them is enough.
        if not event.stage or (event.step + 1) % max(event.steps // 10, 1) == 0:
            # A step as one line of text; numbers that it does not have are left out.
            cells = [("" if c.title == TERMS else f"{c.title} ", c.text(event)) for c in COLUMNS]
            say("  ".join(f"{title}{text}" for title, text in cells if text not in ("", "-")))
        for warning in self.watch.see(event):
            self.warn(warning)

    def on_timeleft(self, event: Any) -> None:
        say(f"time      {event}")

    def on_evaluating(self, event: Any) -> None:
        say(f"held out: {event}")

    def on_heldout(self, event: Any) -> None:
        self.line(held_out_line(event, self.part), style="bold")

    def on_finished(self, event: Any) -> None:
        self.close()
        print_report(event)


class LiveView(LineView):
    """The last steps as a table that stays in its place."""

    def __init__(self, notes: tuple[str, ...], watch: Watch, part: str = "") -> None:
        super().__init__(notes, watch, part)
        self.steps: deque[StepDone] = deque(maxlen=ROWS)
        self.live: Live | None = None

    def warn(self, text: str) -> None:
        # On the live display's own console, or it would be torn.
        say(f"warning: {text}", style="yellow")

    def on_stepdone(self, event: StepDone) -> None:
        if self.steps and self.steps[-1].stage != event.stage:
            self.close()
            self.steps.clear()
        self.steps.append(event)
        if self.live is None:
            self.live = Live(console=out, refresh_per_second=4, transient=False)
            self.live.start()
        for warning in self.watch.see(event):
            self.warn(warning)
        self.live.update(step_table(list(self.steps), out.width), refresh=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


PAUSE_S = 0.25
"""Between two updates of a notebook's output: each is sent to a browser."""
WIDE = 160
"""Columns of a notebook's output."""


class NotebookView(LineView):
    """The last steps and what happened, as one output of a cell that is updated in its place."""

    def __init__(self, notes: tuple[str, ...], watch: Watch, part: str = "") -> None:
        super().__init__(notes, watch, part)
        self.steps: deque[StepDone] = deque(maxlen=ROWS)
        self.lines: list[str] = []
        self.doing = ""
        self._handle: Any = None
        self._shown_at = 0.0

    def show(self, event: Event) -> None:
        super().show(event)
        is_last = type(event).__name__ == "Finished"
        if is_last or time.monotonic() - self._shown_at >= PAUSE_S:
            self.close()

    def line(self, text: str, style: str = "") -> None:
        self.doing = ""
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(f"warning: {text}")

    def on_started(self, event: Any) -> None:
        self.line(f"{event.folder.name}: {event.model}, {event.device}, {event.dtype}")
        self.lines += [f"data: {note}" for note in self.notes]

    def on_preparing(self, event: Any) -> None:
        self.doing = str(event)

    def on_stepdone(self, event: StepDone) -> None:
        self.steps.append(event)
        for warning in self.watch.see(event):
            self.warn(warning)

    def on_timeleft(self, event: Any) -> None:
        self.doing = f"time: {event}"

    def on_evaluating(self, event: Any) -> None:
        self.doing = f"held out: {event}"

    def on_finished(self, event: Any) -> None:
        self.line(f"{result_line(event)}  {event.reason}".rstrip())

    def close(self) -> None:
        """Show what is known by now."""
        from IPython.display import HTML, display

        self._shown_at = time.monotonic()
        page = HTML(f"<pre>{html.escape(self.text())}</pre>")
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)

    def text(self) -> str:
        """The output."""
        paper = Console(file=io.StringIO(), width=WIDE, force_jupyter=False)
        with paper.capture() as captured:
            paper.print(step_table(list(self.steps), WIDE))
        return "\n".join([captured.get(), *self.lines, self.doing])


# --- one step as a line and as a row


class Column(NamedTuple):
    """A number of a step: its title, its text, and how early it goes where space is short."""

    title: str
    text: Callable[[StepDone], str]
    rank: int


TERMS = "loss terms"
"""The one column whose text names what it counts: a line has it without a title."""
COLUMNS = (
    Column("stage", lambda e: e.stage, 1),
    Column("step", lambda e: f"{e.step + 1}/{e.steps}", 0),
    Column("useful", lambda e: f"{e.useful_groups}/{e.groups}" if e.groups else "", 0),
    Column("reward", lambda e: reward_text(e.metrics), 0),
    Column("kept", lambda e: kept_text(e.metrics), 4),
    Column("loss", lambda e: loss_text(e.metrics), 0),
    Column("bits/byte", lambda e: number(e.metrics.get("text/bits_per_byte")), 0),
    Column("epoch", lambda e: epoch_text(e.metrics), 6),
    Column("surrogate", lambda e: surrogate_text(e.metrics), 3),
    Column("kl", lambda e: number(e.metrics.get("loss/kl"), 4), 4),
    Column(TERMS, lambda e: loss_terms(e.metrics), 8),
    Column("gradient", lambda e: number(e.metrics.get("optimiser/gradient_norm")), 2),
    Column("entropy", lambda e: number(e.metrics.get("policy/entropy"), 2), 5),
    Column("clipped", lambda e: share(e.metrics.get("policy/clipped_share")), 6),
    Column("mismatch", lambda e: mismatch_text(e.metrics), 3),
    Column("length", lambda e: number(e.metrics.get("length/mean"), 1), 1),
    Column("cut", lambda e: share(e.metrics.get("length/truncated_share")), 7),
    Column("tokens/s", lambda e: "reread" if e.reused else f"{e.tokens_per_s:.0f}", 5),
    Column("left", lambda e: "-" if e.remaining_s is None else duration(e.remaining_s), 1),
)


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


def loss_text(metrics: Mapping[str, float]) -> str:
    """The loss of an algorithm without a surrogate."""
    is_policy = "loss/surrogate" in metrics or "groups/total" in metrics
    return "-" if is_policy else number(metrics.get("loss/total"), 4)


def epoch_text(metrics: Mapping[str, float]) -> str:
    """How often the text, or the sounds, were read."""
    found = metrics.get("text/epoch", metrics.get("audio/epoch"))
    return "-" if found is None else f"{found:.2f}"


def kept_text(metrics: Mapping[str, float]) -> str:
    """The share of answers that the recipe trains on, where it leaves some out."""
    kept = metrics.get("kept", 1.0)
    return share(kept) if kept < 1 else "-"


def mismatch_text(metrics: Mapping[str, float]) -> str:
    """Nats between sampler and trainer, where they are more than rounding."""
    found = metrics.get(MISMATCH, 0.0)
    return f"{found:.2g}" if found >= ROUNDING else "-"


def loss_terms(metrics: Mapping[str, float]) -> str:
    """`preference loss 0.6931`: terms of the loss beside the surrogate and the KL.

    `loss/sft/coefficient` and its like say something about a term and are none. The only term of a
    loss that is shown as such is not repeated.
    """
    known = ("total", "surrogate", "kl")
    terms = {k.removeprefix("loss/"): v for k, v in metrics.items() if k.startswith("loss/")}
    others = {
        one_line(k): v
        for k, v in terms.items()
        if k not in known and ("/" not in k or k.partition("/")[0] not in terms)
    }
    if loss_text(metrics) != "-" and list(others.values()) == [metrics.get("loss/total")]:
        return ""
    return ", ".join(f"{name} loss {number(value, 4)}" for name, value in others.items())


def held_out_line(event: Any, part: str = "") -> str:
    """An evaluation with its interval, and what could not be scored."""
    what, unit = MEASURES.get(
        event.measure, (f"held out ({part})" if part else "held out", "prompt")
    )
    failed = event.count - event.valid
    missing = f"; {failed} could not be scored" if failed else ""
    when = "before training" if event.step == 0 else f"after {counted(event.step, 'step')}"
    beside = f" ({event.beside})" if event.beside else ""
    of = f"of {counted(event.count, unit)}"
    return f"{what} {when}: {interval(event.score)} {of}{beside}{missing}"


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


# --- the beginning and the end of a run


def print_header(event: Any, notes: tuple[str, ...] = ()) -> None:
    """What will be trained, on what, and what it will need."""
    trained = ""
    if event.trained_parameters != event.parameters:
        trained = f", {count(event.trained_parameters)} trained"
    threads = f", {event.threads} thread{'s' * (event.threads != 1)}"
    say(
        f"model     {event.model}: {count(event.parameters)} parameters{trained}, {event.device}, "
        f"{event.dtype}{threads if event.device == 'cpu' else ''}"
    )
    forecast = event.forecast
    parts = ", ".join(f"{name} {size(value)}" for name, value in forecast.memory.items())
    fits = "" if forecast.fits else ", MORE THAN IS FREE"
    say(
        f"memory    {size(forecast.total)} of {size(forecast.available)} free{fits} ({parts})",
        style="" if forecast.fits else "yellow",
    )
    if not forecast.fits and forecast.advice:
        say(f"to fit    {forecast.advice}", style="yellow")
    prompts = event.prompts
    if prompts.looked_at:
        lengths = f"{prompts.looked_at} measured, longest {prompts.longest} tokens"
        say(f"prompts   {lengths}{prompts.note}")
    if event.answers.reason:
        limit = event.answers
        say(f"answers   rollout.max_tokens={limit.tokens}, chosen: {limit.reason}")
    if prompts.overlong:
        worst = ", ".join(f"{task} ({tokens})" for task, tokens in prompts.overlong[:3])
        more = f" and {len(prompts.overlong) - 3} more" if len(prompts.overlong) > 3 else ""
        warn(f"{len(prompts.overlong)} prompts are over the limit: {worst}{more}")
    for note in notes:
        say(f"data      {note}")
    if event.done:
        say(f"continue  {event.done} of {event.steps} steps are done already", style="cyan")
    if event.again:
        steps = counted(event.again, "step")
        say(
            f"again     {steps} done once more: no checkpoint holds what came of them", style="cyan"
        )
    say(f"run       {shown_path(event.folder)}")


def print_report(event: Any, *, brief: bool = False) -> None:
    """Before and after with intervals, the curves, and where to look further."""
    if event.reason:
        warn(f"stopped: {event.reason}")
    if not brief:
        _print_curves(event.folder)
    with RunStore.open(event.folder, read_only=True) as store:
        rewards, raised = rewarded(store.about), raised_line(store)
        is_paid = setting(store.about, "train.kind") in (None, "policy")
    if raised and not event.reason:  # the reason of a stop has it already
        warn(raised)
    if rewards and not brief:
        say(f"{'rewarded' if is_paid else 'scored  '}  {one_line(rewards)}")
    say(result_line(event), style="bold")
    if brief:
        return
    parent = shown_path(event.folder).parent
    runs = "burnish runs" if parent == Path("runs") else f"burnish runs --runs {parent}"
    say(f"look further     burnish show {run_word(event.folder)}    {runs}")
    newest = sorted((event.folder / "checkpoints").glob("step-*"))
    if not event.is_trained:
        say("no update was made, so there is no trained model", style="yellow")
    elif newest:
        say(f"trained model    {shown_path(newest[-1])}")


def result_line(event: Any) -> str:
    """`held out 0.32 [..] -> 0.61 [..]; change +0.29 [..], paired over 100 prompts`."""
    if not event.evaluations and event.before is None and event.after is None:
        return f"{event.status} in {duration(event.seconds)}, without a held-out evaluation"
    what, unit = MEASURES.get(event.measure, ("held out", "prompt"))
    line = f"{what}  {interval(event.before)} -> {interval(event.after)}"
    if event.change is not None:
        # Only rewards are those of sampled answers: pairs, solutions and demonstrations are read.
        how = ", greedy answers" if event.measure == "reward" else ""
        line += (
            f"; change {interval(event.change, signed=True)}, paired over "
            f"{counted(event.change.size, unit)}{how}, 95 % intervals"
        )
    return f"{line}  ({event.status} in {duration(event.seconds)})"


def _print_curves(folder: Path) -> None:
    with RunStore.open(folder, read_only=True) as store:
        curves = curves_of(store)
    print_curves(curves)
    picture = folder / "plots" / "curves.png"
    try:
        draw_picture(curves, picture)
    except BurnishError as error:
        # The run itself is whole; a missing picture must not make it fail.
        say(str(error), style="yellow")
    else:
        say(f"curves           {shown_path(picture)}")


def rewarded(about: Manifest) -> str:
    """What earned reward: `digit, brief (weight 0.2)`; not what is only measured."""
    told = []
    place = 0
    while (kind := setting(about, f"rewards.{place}.kind")) is not None:
        keys = ("name", "weight", "method", "path")
        name, weight, method, path = (setting(about, f"rewards.{place}.{key}") for key in keys)
        place += 1
        # A function that was given in Python has a digest of its code behind its name.
        called = str(path or "").rpartition(":")[2].partition("@")[0] if kind == "function" else ""
        title = name or called or method or kind
        if weight != 0:
            told.append(title if weight in (None, 1) else f"{title} (weight {weight:g})")
    return ", ".join(told)


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
    return (NotebookView if in_notebook() else kind)(
        tuple(trainer.tasks.notes),
        watch_of(config, trainer.store.about.origins),
        config.evaluation.part,
    )


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process; a terminal's IPython is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
