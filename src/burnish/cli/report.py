"""`burnish report`: what a run came to, as one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from burnish.cli.audit import Gold, audit_of
from burnish.cli.console import say
from burnish.cli.runs import choose_run
from burnish.cli.shared_options import RUNS, RunName, RunsFolder
from burnish.errors import UserError
from burnish.store import RunStore


def report(
    run: RunName = "",
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FILE", help=".html or .md; else standard output."),
    ] = None,
    gold: Gold = "",
    markdown: Annotated[bool, Option("--markdown", help="Markdown instead of HTML.")] = False,
    folder: RunsFolder = RUNS,
) -> int:
    """Write what a run came to as one file: curves, forecast and fact, samples, audit, versions.

    \b
      burnish report > report.html
      burnish report grpo-1f --out report.md
    """
    from burnish.view import report as pages

    with RunStore.open(choose_run(folder, run), read_only=True) as store:
        contents = pages.contents_of(store, audit_of(store, gold))
    suffix = out.suffix.lower() if out else ""
    if suffix not in ("", ".html", ".htm", ".md"):
        raise UserError(f"the report's file is {out}; expected a name that ends in .html or .md")
    is_markdown = markdown or suffix == ".md"
    text = pages.markdown(contents) if is_markdown else pages.html_page(contents)
    if out is None:
        sys.stdout.write(text)
        return 0
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot write the report: {error.strerror}.") from error
    say(f"report  {out}  ({len(text.encode()) / 1024:.0f} KB, nothing else is needed to open it)")
    return 0
