"""`burnish sweep`: train a grid of settings and seeds, and show how the runs stand."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from burnish.cli.compare import print_table
from burnish.cli.completion import complete_words
from burnish.cli.console import complain, emit_json, number, one_line, out, say
from burnish.errors import UserError
from burnish.texts import duration

if TYPE_CHECKING:
    from burnish.api.sweep import SweepEvent
    from burnish.api.sweep_plan import Grid, RunState, SweepPlan

STYLES = {
    "running": "cyan",
    "finished": "green",
    "interrupted": "yellow",
    "elsewhere": "yellow",
    "failed": "red",
}


def sweep(
    words: Annotated[
        list[str],
        Argument(
            metavar="RECIPE KEY=A,B",
            autocompletion=complete_words,
            help="A recipe (or a sweep file), then settings; commas part the values of a grid.",
        ),
    ],
    seeds: Annotated[
        str, Option(metavar="N", help="Seeds of each setting: a count, or 4,5,6.")
    ] = "",
    jobs: Annotated[
        int | None, Option(min=1, metavar="N", help="Runs at once; else as many as fit.")
    ] = None,
    sample: Annotated[
        int | None, Option(min=1, metavar="N", help="Draw N combinations of the grid.")
    ] = None,
    retry: Annotated[bool, Option("--retry", help="Try failed runs again.")] = False,
    name: Annotated[
        str, Option(metavar="NAME", help="Name of the sweep; else from its runs.")
    ] = "",
    list_only: Annotated[
        bool, Option("--list", help="Show the runs and where they stand, then stop.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="One JSON object a line for each event.")
    ] = False,
    runs: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where runs live; run.folder by default.")
    ] = None,
) -> int:
    """Train a grid of settings and seeds, as many runs at once as fit.

    Each run is an ordinary one in its own folder. The same command continues a
    sweep: finished runs are skipped, interrupted ones continued exactly, and
    failed ones named and tried again only with --retry. A value with a comma is
    quoted: task.name='"a,b",c'; lists are values: [1,2],[3,4].

    \b
      burnish sweep grpo optimiser.learning_rate=1e-6,3e-6 --seeds 3
      burnish sweep my.toml policy.advantage.kind=grpo,dr_grpo steps=50 --jobs 2
      burnish sweep my.toml optimiser.beta2=0.9,0.95,0.99 --sample 2 --list
      burnish sweep sweep.toml              a file with [sweep] and [sweep.grid]
    """
    from burnish.api.sweep import compare_sweep, run_sweep
    from burnish.api.sweep_plan import plan_sweep

    plan = plan_sweep(_grid(words, seeds, sample, name), runs)
    if list_only:
        _print_list(plan, as_json=as_json)
        return 0
    if not as_json:
        _print_begin(plan, retry=retry)
    try:
        with _terminated_as_interrupt():
            _show(plan, run_sweep(plan, jobs=jobs, retry=retry), as_json=as_json)
    except KeyboardInterrupt:
        done = sum(state.status == "finished" for state in plan.states)
        complain(
            f"interrupted after {done} of {len(plan.states)} runs; the same command continues them."
        )
        return 130
    _print_end(plan, compare_sweep(plan), as_json=as_json)
    return 3 if any(state.status == "failed" for state in plan.states) else 0


def _grid(words: Sequence[str], seeds: str, sample: int | None, name: str) -> Grid:
    from burnish.api.sweep_plan import is_sweep_file, read_file, read_words

    file = Path(words[0])
    if is_sweep_file(file):
        grid = read_file(file)
        more = read_words([grid.words[0], *words[1:]])
        typed = {key for key, _ in more.axes} | {w.partition("=")[0] for w in more.words[1:]}
        axes = [axis for axis in grid.axes if axis[0] not in typed]
        grid = grid._replace(words=[*grid.words, *more.words[1:]], axes=[*axes, *more.axes])
    else:
        grid = read_words(words)
    if seeds:
        grid = grid._replace(seeds=_seeds(seeds))
    return grid._replace(sample=sample or grid.sample, name=name or grid.name)


def _seeds(text: str) -> int | list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise UserError(f"--seeds is '{text[:60]}'; expected a count such as 3, or seeds: 4,5,6.")
    return int(parts[0]) if len(parts) == 1 else [int(part) for part in parts]


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """A terminated sweep stops its runs as an interrupted one does."""

    def stop(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- what is shown


def _print_list(plan: SweepPlan, *, as_json: bool) -> None:
    if as_json:
        for state in plan.states:
            emit_json(state.record())
        return
    say(_title(plan), style="bold")
    out.print(_runs_table(plan))
    for state in plan.states:
        say(shlex.join(["burnish", "train", *state.run.words]))


def _title(plan: SweepPlan) -> str:
    record = plan.record
    axes = [f"{key} ({len(values)})" for key, values in record.grid.items()]
    drawn = f", {record.sampled} combinations drawn" if record.sampled else ""
    seeds = f"{len(record.seeds)} seed{'s' * (len(record.seeds) != 1)}"
    return f"sweep {record.name}: {len(plan.states)} runs of {record.recipe}: " + (
        " x ".join([*axes, seeds]) + drawn
    )


def _print_begin(plan: SweepPlan, *, retry: bool) -> None:
    say(_title(plan), style="bold")
    for status, what in (
        ("finished", "finished already"),
        ("interrupted", "are continued"),
        ("elsewhere", "are being trained by another process"),
    ):
        if count := sum(state.status == status for state in plan.states):
            say(f"{count} of them {what}")
    failed = [state for state in plan.states if state.status == "failed"]
    for state in failed:
        say(f"failed before: {one_line(state.label)}: {one_line(state.reason)}", style="red")
    if failed:
        say("they are tried again" if retry else "--retry tries them again")


def _show(plan: SweepPlan, events: Iterator[SweepEvent], *, as_json: bool) -> None:
    if as_json:
        for event in events:
            if event.state is None:
                emit_json({"event": event.kind, "text": event.text})
            else:
                emit_json({"event": event.kind, **event.state.record()})
    elif out.is_terminal:
        from rich.live import Live

        with Live(_runs_table(plan), console=out, refresh_per_second=2) as live:
            for event in events:
                if event.kind == "jobs":
                    say(event.text)
                live.update(_runs_table(plan, most=max(out.height - 6, 5)))
            live.update(_runs_table(plan), refresh=True)
    else:
        for event in events:
            if event.state is None:
                say(event.text)
            elif event.kind != "progress":
                state = event.state
                scores = f", held out {_scores(state)}" if state.before is not None else ""
                reason = f": {one_line(state.reason)}" if state.reason else ""
                what = f"{event.kind:<11} {state.run.name}  {one_line(state.label)}"
                say(
                    f"{what}{scores if event.kind != 'started' else ''}{reason}",
                    STYLES.get(event.kind, ""),
                )


def _runs_table(plan: SweepPlan, most: int = 0) -> Table:
    """One line a run; where there is no room for all, those that are not finished come first."""
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("run", "settings", "status", "step", "held out", "left"):
        kept = title not in ("run", "settings")
        table.add_column(title, overflow="fold", no_wrap=kept, min_width=len(title))
    states = list(plan.states)
    if most and len(states) > most:
        order = ("running", "failed", "interrupted", "elsewhere", "waiting", "finished")
        states = sorted(states, key=lambda state: order.index(state.status))[:most]
    for state in states:
        left = state.remaining_s if state.status == "running" else None
        table.add_row(
            Text(state.run.name),
            Text(one_line(state.label)),
            Text(state.status, style=STYLES.get(state.status, "")),
            f"{state.step}/{state.steps}",
            _scores(state),
            "" if left is None else duration(left),
        )
    if len(states) < len(plan.states):
        table.add_row(f"... {len(plan.states) - len(states)} more")
    return table


def _scores(state: RunState) -> str:
    return "" if state.before is None else f"{number(state.before)} -> {number(state.after)}"


def _print_end(plan: SweepPlan, table: Any, *, as_json: bool) -> None:
    if as_json:
        found = None if table is None else table.record()
        states = [state.record() for state in plan.states]
        emit_json({"event": "done", "sweep": plan.record.name, "runs": states, "table": found})
        return
    say()
    if table is not None:
        print_table(table)
    for state in plan.states:
        if state.status == "failed":
            say(f"failed    {one_line(state.label)}: {one_line(state.reason)}", style="red")
            say(f"          {shlex.join(['burnish', 'train', *state.run.words])}")
    folder = "" if plan.folder == Path("runs") else f" --runs {plan.folder}"
    say(f"look at it: burnish compare {plan.record.name}{folder}    burnish view{folder}")
