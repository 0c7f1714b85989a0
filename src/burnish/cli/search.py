"""`burnish search`: try a search over a file or folder of texts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from burnish.cli.console import emit_json, one_line, out, say
from burnish.cli.reporter import Reporter
from burnish.cli.shared_options import AsJson
from burnish.errors import UserError
from burnish.texts import counted

if TYPE_CHECKING:
    from burnish.tools.search import Hit


def search(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder of .txt and .md files, or a JSONL, CSV, TSV or Parquet file.",
            show_default=False,
        ),
    ],
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="What to look for.", show_default=False)
    ],
    how: Annotated[
        Literal["bm25", "dense", "hybrid"],
        typer.Option("--how", help="By words, by vectors (MiniLM), or by both."),
    ] = "bm25",
    k: Annotated[int, typer.Option("-k", min=1, metavar="N", help="How many passages.")] = 5,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index", metavar="FOLDER", help="Where the index is kept; else the cache folder."
        ),
    ] = None,
    text: Annotated[str, typer.Option("--text", metavar="COLUMN", help="Column of texts.")] = "",
    title: Annotated[str, typer.Option("--title", metavar="COLUMN", help="Column of titles.")] = "",
    id_: Annotated[str, typer.Option("--id", metavar="COLUMN", help="Column of ids.")] = "",
    longest: Annotated[
        int,
        typer.Option("--longest", min=40, help="Characters of a passage; longer texts are cut."),
    ] = 1200,
    as_json: AsJson = False,
) -> int:
    """Search a folder or file of texts; the index is built once and kept.

    \b
      burnish search manuals/ "descale the kettle"
      burnish search corpus.parquet "who founded Baghdad" --how hybrid -k 3 --json
    """
    try:
        from burnish.tools.search.index import open_index
        from burnish.tools.search.sources import Source
    except ImportError as error:
        raise UserError(
            f"burnish search needs {error.name}: pip install 'burnish[search]'"
        ) from error

    given = Source(source, text=text, title=title, id=id_, longest=longest)
    with Reporter() as report:
        found = open_index(given, folder=index, how=how, report=report)
        if how != "bm25":
            found.search(query, 1)  # loads the encoder, which is no part of a query's time
    started = time.perf_counter()
    hits = found.find(query, k)
    seconds = time.perf_counter() - started
    if as_json:
        for rank, hit in enumerate(hits, start=1):
            passage = hit.passage
            row = {"rank": rank, "score": hit.score, "id": passage.id}
            emit_json(row | {"title": passage.title, "text": passage.text})
        return 0
    for rank, hit in enumerate(hits, start=1):
        _show(rank, hit)
    if not hits:
        say("nothing found: no word of the query stands in any passage", style="yellow")
    said = f"{how} over {counted(len(found), 'passage')}, {1000 * seconds:.1f} ms"
    say(said, style="bright_black")
    return 0


def _show(rank: int, hit: Hit) -> None:
    passage = hit.passage
    head = Text(f"{rank}. ", style="bold")
    head.append(one_line(passage.title or passage.id), style="bold")
    head.append(f"  {one_line(passage.id)}  {hit.score:#.4g}", style="bright_black")
    out.print(head, soft_wrap=True)
    flat = " ".join(passage.text.split())
    say(f"   {flat[:300]}{'...' if len(flat) > 300 else ''}")
