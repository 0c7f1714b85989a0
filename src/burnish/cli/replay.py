"""`burnish replay`: the step that a guard stopped, once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from burnish.api.needs import import_training
from burnish.cli.console import say


def replay(
    folder: Annotated[
        Path, Argument(metavar="CRASH_FOLDER", help="runs/NAME/crash/step-N of a run.")
    ],
) -> int:
    """Run the step that a guard stopped once more, and arrive at the same line.

    \b
      burnish replay runs/grpo-1f3a/crash/step-000012
    """
    say(import_training().replay(folder))
    return 0
