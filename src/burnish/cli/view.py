"""`burnish view`: look at runs in a browser, on this machine only."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from typer import Argument, Option

from burnish.api.needs import needed
from burnish.cli.completion import complete_runs
from burnish.cli.console import out, say, warn
from burnish.cli.shared_options import RUNS, RunsFolder
from burnish.errors import UserError
from burnish.store import find_run
from burnish.texts import counted


def view(
    references: Annotated[
        list[str] | None,
        Argument(
            metavar="[RUN ...]",
            help="Runs by name, beginning of a name, or folder; all of the folder when left out. "
            "Also folders of burnish skill distill.",
            autocompletion=complete_runs,
        ),
    ] = None,
    folder: RunsFolder = RUNS,
    results: Annotated[
        Path, Option(metavar="FOLDER", help="Where results of burnish bench live.")
    ] = Path("results"),
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any free one.")] = 0,
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> int:
    """Look at runs in a browser: curves, groups, single rollouts, search, comparison.

    Only this machine can reach it, and only with the address it prints. Runs
    are only read; one that is being trained is followed live.

    \b
      burnish view
      burnish view grpo-1f --no-browser --port 8080
      burnish view distilled
    """
    with needed("the viewer", "view"):
        from burnish.view.pages.runs import Runs
        from burnish.view.pages.skills import SkillFolders, is_distilled
        from burnish.view.server.app import HOST, address, new_token, serve
        from burnish.view.server.routes import Viewer
        from burnish.web.server import bound_socket
    skills = [Path(one) for one in references or [] if is_distilled(Path(one))]
    names = [one for one in references or [] if Path(one) not in skills]
    chosen = [find_run(folder, reference) for reference in names]
    if not chosen and not skills and not folder.is_dir():
        raise UserError(
            f"no folder {folder} with runs here. Start a run: burnish train; or name a folder: "
            "burnish view --runs FOLDER"
        )
    runs = Runs(folder=None if skills and not chosen else folder, chosen=chosen)
    shelf = SkillFolders(skills, beside=None if skills else folder)
    # One skill alone is what the browser opens.
    listed = shelf.listing()["skills"] if skills and not chosen else []
    page = f"/skill?{urlencode({'key': listed[0]['key']})}" if listed else "/"
    token = new_token()
    with bound_socket(HOST, port) as own:
        own.listen(128)  # a browser may ask before the server runs
        where = address(own, token, page)
        found = runs.listing()
        what = (
            counted(len(skills), "skill") if skills and not chosen else f"{len(found.folders)} runs"
        )
        say(f"{what}, read only; on this machine only. Ctrl-C stops.")
        # A line of its own without colours or wrapping: terminals make it a link.
        out.file.write(f"{where}\n")
        out.file.flush()
        if found.skipped_total:
            warn(f"{found.skipped_total} folders are no runs; the page lists them")
        if browser and not webbrowser.open(where):
            warn("no browser could be opened; open the address by hand")
        with contextlib.suppress(KeyboardInterrupt):
            serve(Viewer(runs, results, shelf), token, own)
    say("stopped.")
    return 0
