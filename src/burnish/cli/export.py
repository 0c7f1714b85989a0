"""`burnish export`: a run's samples or metrics as a file for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

from typer import Argument, Option

from burnish.cli.completion import complete_runs
from burnish.cli.console import say
from burnish.cli.shared_options import RUNS, RunsFolder
from burnish.store import export as export_table
from burnish.store import find_run
from burnish.store.frames import media_folder


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
