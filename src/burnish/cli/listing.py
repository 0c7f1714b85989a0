"""`burnish runs` and `burnish export`: runs from the outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from rich.table import Table
from rich.text import Text

from burnish.cli.console import STATUS_STYLES, emit_json, number, out, say
from burnish.cli.manifests import planned_steps
from burnish.errors import StoreError
from burnish.store import (
    RunInfo,
    RunStatus,
    RunStore,
    StoredEvaluation,
    export,
    find_run,
    list_runs,
)
from burnish.texts import safe


def list_all(folder: Path, *, as_json: bool) -> int:
    """Print one line for each run of a folder."""
    rows = [_row(info) for info in list_runs(folder)]
    if as_json:
        for row in rows:
            emit_json(row)
        return 0
    if not rows:
        say(f"no runs in {folder}. Start one: burnish train")
        return 0
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("run", "recipe", "status", "steps", "held out", "started"):
        table.add_column(title, overflow="fold", no_wrap=title in ("status", "steps"))
    for row in rows:
        steps = f"{row['steps']}/{row['planned']}" if row["planned"] else str(row["steps"])
        table.add_row(
            Text(safe(row["name"]), style="bold"),
            Text(safe(row["recipe"])),
            Text(row["status"], style=STATUS_STYLES[row["status"]]),
            steps if not row["problem"] else "-",
            _held_out(row["before"], row["after"]),
            Text(safe(row["started"][:16].replace("T", " "))),
        )
    out.print(table)
    for row in rows:
        if row["problem"]:
            say(f"{row['name']}: {row['problem']}", style="red")
    return 0


def export_run(folder: Path, reference: str, path: Path, what: str, *, raw: bool = False) -> int:
    """Write a table of a run to a file and say how many rows it has."""
    run = find_run(folder, reference)
    written = export(run, path, cast(Literal["samples", "metrics"], what), raw=raw)
    say(f"{written} {what} of run '{run.name}' written to {path}")
    if path.suffix == ".csv" and not raw:
        say("texts that begin like a formula have an apostrophe in front; --raw leaves it out")
    return 0


def held_out_score(evaluation: StoredEvaluation) -> list[float] | None:
    """Value, low, high and count of a stored evaluation."""
    score: list[float] | None = evaluation.summary.get("score")
    return score


def _row(info: RunInfo) -> dict[str, Any]:
    before, after, planned = None, None, None
    problem = info.problem
    if info.status is not RunStatus.UNREADABLE:
        try:
            with RunStore.open(info.folder, read_only=True) as store:
                planned = planned_steps(store.about)
                scores = [held_out_score(e) for e in store.evaluations("held_out")]
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
        "problem": problem,
    }


def _held_out(before: list[float] | None, after: list[float] | None) -> str:
    if before is None:
        return "-"
    return f"{number(before[0])} -> {number(after[0]) if after else '?'}"
