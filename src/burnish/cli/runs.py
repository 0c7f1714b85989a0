"""`burnish runs`: the runs of a folder; and what other commands ask of a stored run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from burnish.cli.completion import complete_runs
from burnish.cli.console import STATUS_STYLES, emit_json, number, out, say
from burnish.cli.shared_options import RUNS, AsJson, RunsFolder
from burnish.errors import StoreError, UserError
from burnish.step_warnings import RAISED, WARNING, raised_in
from burnish.store import (
    Manifest,
    RunEnd,
    RunInfo,
    RunStatus,
    RunStore,
    StoredEvaluation,
    export as export_table,
    find_run,
    list_runs,
)
from burnish.store.frames import media_folder
from burnish.texts import safe

MEASURES = {
    "bits_per_byte": ("held-out bits per byte", "sequence"),
    "loss": ("held-out loss", "example"),
    "log_spectral_distance": ("held-out log-spectral distance in dB", "sound"),
}
"""What a held-out score is called, and what is counted, where it is no reward."""


def runs(folder: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """List runs: status, steps, the held-out score before and after, and why a run ended early.

    \b
      burnish runs
      burnish runs --runs /data/experiments --json
    """
    infos = list_runs(folder)
    rows = [_row(info) for info in infos]
    if as_json:
        for row in rows:
            emit_json(row)
        return 0
    if not rows:
        say(f"no runs in {folder}. Start one: burnish train")
        return 0
    out.print(_table(rows))
    for info, row in zip(infos, rows, strict=True):
        if row["problem"]:
            say(f"{row['name']}: {row['problem']}", style="red")
        elif info.end and (line := end_line(info.end)):
            say(f"{row['name']} {info.status.value}: {line}", style=STATUS_STYLES[row["status"]])
        elif row["raised"]:
            say(f"{row['name']}: {row['raised']}", style="yellow")
    return 0


def _table(rows: list[dict[str, Any]]) -> Table:
    """A line for each run; where the terminal is narrow, names stay whole and columns go."""
    cells = {
        "run": [Text(safe(row["name"]), style="bold") for row in rows],
        "recipe": [Text(safe(row["recipe"])) for row in rows],
        "status": [Text(row["status"], style=STATUS_STYLES[row["status"]]) for row in rows],
        "steps": [Text(_steps(row)) for row in rows],
        "held out": [Text(_held_out(row["before"], row["after"])) for row in rows],
        "started": [Text(safe(row["started"][:16].replace("T", " "))) for row in rows],
    }
    widths = {
        title: max(cell.cell_len for cell in [Text(title), *column])
        for title, column in cells.items()
    }
    for spare in ("started", "recipe"):
        if sum(widths.values()) + 2 * (len(widths) - 1) > out.width:
            del cells[spare], widths[spare]
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in cells:
        table.add_column(title, overflow="fold", no_wrap=title in ("status", "steps"))
    for line in zip(*cells.values(), strict=True):
        table.add_row(*line)
    return table


def _steps(row: dict[str, Any]) -> str:
    if row["problem"]:
        return "-"
    return f"{row['steps']}/{row['planned']}" if row["planned"] else str(row["steps"])


def raised_line(store: RunStore) -> str:
    """What a reward raised in this run, and the command that shows such answers; or nothing."""
    raised = raised_in(store)
    return f"{raised} burnish show {store.name} --failed 3" if raised else ""


def end_line(end: RunEnd) -> str:
    """`at step 7: interrupted with Ctrl-C`; empty for a run that goes on or is finished."""
    if not end.reason:
        return ""
    if end.step is None or re.search(r"\bstep \d", end.reason):
        return end.reason
    return f"at step {end.step + 1}: {end.reason}"


def _row(info: RunInfo) -> dict[str, Any]:
    before, after, planned, raised = None, None, None, ""
    problem = info.problem
    if info.status is not RunStatus.UNREADABLE:
        try:
            with RunStore.open(info.folder, read_only=True) as store:
                planned = planned_steps(store.about)
                scores = [held_out_score(e) for e in store.evaluations("held_out")]
                told = [e.message for e in store.events(WARNING) if RAISED in e.data]
                raised = told[-1] if told else ""
        except StoreError as error:
            problem = str(error)
        else:
            before = scores[0] if scores else None
            after = scores[-1] if len(scores) > 1 else None
    return {
        "name": info.name,
        "folder": str(info.folder),
        "recipe": info.recipe,
        "status": info.status.value,
        "steps": info.steps,
        "planned": planned,
        "before": before,
        "after": after,
        "started": info.created,
        "reason": info.end.reason if info.end else "",
        "raised": raised,
        "end": msgspec.to_builtins(info.end),
        "problem": problem,
    }


def _held_out(before: list[float] | None, after: list[float] | None) -> str:
    if before is None:
        return "-"
    return f"{number(before[0])} -> {number(after[0]) if after else '?'}"


# --- what other commands ask of a stored run


def choose_run(folder: Path, reference: str) -> Path:
    """The folder of the run that is named; of the newest one where none is."""
    if reference:
        return find_run(folder, reference)
    runs = list_runs(folder)
    if not runs:
        raise UserError(f"{folder} holds no runs. Start one: burnish train")
    return runs[-1].folder


def held_out_score(evaluation: StoredEvaluation) -> list[float] | None:
    """Value, low, high and count of a stored evaluation."""
    score: list[float] | None = evaluation.summary.get("score")
    return score


def setting(about: Manifest, key: str) -> Any:
    """The value of a dotted key, such as `rollout.prompts`; None where the run has none."""
    return about.config.get(key)


def planned_steps(about: Manifest) -> int | None:
    """How many steps the run was asked for."""
    steps = setting(about, "steps")
    return steps if isinstance(steps, int) else None


def export(
    run: Annotated[
        str,
        Argument(
            metavar="RUN", help="A run's name, prefix or folder.", autocompletion=complete_runs
        ),
    ],
    path: Annotated[Path, Argument(metavar="PATH", help=".jsonl, .json, .csv or .parquet")],
    what: Annotated[str, Option(help="samples or metrics.")] = "samples",
    raw: Annotated[
        bool, Option("--raw", help="CSV: keep texts that a spreadsheet runs as formulas.")
    ] = False,
    folder: RunsFolder = RUNS,
) -> int:
    """Write a run's samples or metrics as one file for other tools.

    \b
      burnish export grpo-1f3a samples.parquet
      burnish export grpo-1f3a curves.csv --what metrics
    """
    found = find_run(folder, run)
    written = export_table(found, path, cast(Literal["samples", "metrics"], what), raw=raw)
    say(f"{written} {what} of run '{found.name}' written to {path}")
    media = media_folder(path)
    if what == "samples" and media.is_dir():
        say(f"their images and sounds: {media}")
    if path.suffix == ".csv" and not raw:
        say("texts that begin like a formula have an apostrophe in front; --raw leaves it out")
    return 0
