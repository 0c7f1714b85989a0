"""The arguments and flags that commands about recipes and runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RUNS = Path("runs")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE KEY=VALUE",
        help="A .toml file or the name of a shipped recipe, then settings to change.",
        show_default=False,
    ),
]
RunsFolder = Annotated[
    Path, typer.Option("--runs", metavar="FOLDER", help="Where runs live.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="A run's name, the beginning of it, or its folder; the newest when left out.",
        show_default=False,
    ),
]
