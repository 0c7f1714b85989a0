"""`burnish search`: try a search over a file or folder of texts."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.cells import cell_len
from rich.text import Text
from typer import Argument, Option

from burnish.api.needs import needed
from burnish.cli.console import Reporter, emit_json, one_line, out, say
from burnish.cli.shared_options import AsJson
from burnish.texts import counted

if TYPE_CHECKING:
    from burnish.tools.search import Hit

INDENT = "   "
CUT = " ... "
MARKS = 200
"""Places in a passage at which an excerpt may begin."""


def search(
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="A folder of .txt and .md files, or a JSONL, CSV, TSV or Parquet file.",
        ),
    ],
    query: Annotated[str, Argument(metavar="QUERY", help="What to look for.")],
    how: Annotated[
        Literal["bm25", "dense", "hybrid"],
        Option(help="By words, by vectors (MiniLM), or by both."),
    ] = "bm25",
    k: Annotated[int, Option("-k", min=1, metavar="N", help="How many passages.")] = 5,
    index: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Where the index is kept; else the cache folder."),
    ] = None,
    text: Annotated[str, Option(metavar="COLUMN", help="Column of texts.")] = "",
    title: Annotated[str, Option(metavar="COLUMN", help="Column of titles.")] = "",
    id_: Annotated[str, Option("--id", metavar="COLUMN", help="Column of ids.")] = "",
    longest: Annotated[
        int, Option(min=40, help="Characters of a passage; longer texts are cut.")
    ] = 1200,
    as_json: AsJson = False,
) -> int:
    """Search a folder or file of texts; the index is built once and kept.

    \b
      burnish search manuals/ "descale the kettle"
      burnish search corpus.parquet "who founded Baghdad" --how hybrid -k 3 --json
    """
    with needed("searches", "search"):
        from burnish.tools.search.index import open_index
        from burnish.tools.search.sources import Source

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
        _show(rank, hit, query)
    if not hits:
        why = (
            "no word of the query stands in any passage" if query.strip() else "the query is empty"
        )
        say(f"nothing found: {why}", style="yellow")
    said = f"{how} over {counted(len(found), 'passage')}, {1000 * seconds:.1f} ms"
    say(said, style="bright_black")
    return 0


def _show(rank: int, hit: Hit, query: str) -> None:
    from burnish.tools.search.passages import query_words

    passage = hit.passage
    head = Text(f"{rank}. ", style="bold")
    head.append(one_line(passage.title or passage.id), style="bold")
    head.append(f"  {one_line(passage.id)}  {hit.score:#.4g}", style="bright_black")
    out.print(head, soft_wrap=True)
    words = query_words(query)
    part = excerpt(one_line(" ".join(passage.text.split())), words, out.width - len(INDENT))
    shown = Text(f"{INDENT}{part}")
    for word in words:
        shown.highlight_regex(_pattern(word), "bold")
    out.print(shown, soft_wrap=True)


def excerpt(line: str, words: Sequence[str], most: int) -> str:
    """The part of a line with the most of these words, at most so long, cut between words.

    >>> excerpt("Boil the water first. Then descale the kettle with vinegar, once a month.",
    ...         ["descale", "vinegar"], 48)
    '... descale the kettle with vinegar, once ...'
    """
    if cell_len(line) <= most:
        return line
    if cell_len(line) > len(line):  # as in Chinese, whose characters take two columns
        most //= 2
    room = most - 2 * len(CUT)
    places = sorted(
        (found.start(), word) for word in words for found in re.finditer(_pattern(word), line)
    )
    begin, best = 0, 0
    # With a few words before it, or from the word on where more of the query fits so.
    starts = [max(0, place - lead) for lead in (room // 4, 0) for place, _ in places[:MARKS]]
    for start in starts:
        seen = len({word for at, word in places if start <= at and at + len(word) <= start + room})
        if seen > best:
            begin, best = start, seen
    begin = min(begin, len(line) - room)
    part = line[begin : begin + room]
    if begin and line[begin - 1] != " ":
        part = part.partition(" ")[2] or part
    is_cut = begin + room < len(line)
    if is_cut and line[begin + room] != " ":
        part = part.rpartition(" ")[0] or part
    return f"{CUT.lstrip() if begin else ''}{part.strip()}{CUT.rstrip() if is_cut else ''}"


def _pattern(word: str) -> str:
    """Where a word of the query stands in a text, whatever its case; Chinese has no gaps."""
    plain = re.escape(word)
    return rf"(?i)(?<![^\W_]){plain}(?![^\W_])" if word.isascii() else rf"(?i){plain}"
