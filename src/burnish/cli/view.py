"""`burnish view`: look at runs in a browser, on this machine only."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from burnish.cli.console import out, say, warn
from burnish.errors import UserError
from burnish.store import find_run


class Options(NamedTuple):
    """The flags of `burnish view`."""

    runs: Path
    results: Path = Path("results")
    port: int = 0
    browser: bool = True


def view(references: Sequence[str], options: Options) -> int:
    """Serve the viewer until Ctrl-C."""
    try:
        from burnish.view.pages.runs import Runs
        from burnish.view.server.routes import Viewer
        from burnish.view.server.run import address, listening, new_token, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("burnish"):
            raise
        raise UserError(
            f"the viewer needs the package '{error.name}'. Install it: pip install 'burnish[view]'"
        ) from error
    chosen = [find_run(options.runs, reference) for reference in references]
    if not chosen and not options.runs.is_dir():
        raise UserError(
            f"no folder {options.runs} with runs here. Start a run: burnish train; or name a folder: "
            "burnish view --runs FOLDER"
        )
    runs = Runs(folder=options.runs, chosen=chosen)
    token = new_token()
    with listening(options.port) as own:
        where = address(own, token)
        found = runs.listing()
        say(f"{len(found.folders)} runs, read only; on this machine only. Ctrl-C stops.")
        # A line of its own without colours or wrapping: terminals make it a link.
        out.file.write(f"{where}\n")
        out.file.flush()
        if found.skipped_total:
            warn(f"{found.skipped_total} folders are no runs; the page lists them")
        if options.browser and not webbrowser.open(where):
            warn("no browser could be opened; open the address by hand")
        with contextlib.suppress(KeyboardInterrupt):
            serve(Viewer(runs, options.results), token, own)
    say("stopped.")
    return 0
