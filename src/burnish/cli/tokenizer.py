"""`burnish tokenizer train`: a vocabulary of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.api.needs import needed
from burnish.arguments import as_new_folder
from burnish.cli.console import emit_json, say
from burnish.cli.shared_options import AsJson
from burnish.texts import shown_path


def train(
    data: Annotated[
        list[str],
        Argument(
            metavar="DATA...",
            help="Text files, folders, JSONL, CSV or Parquet files, or mine.py:documents.",
        ),
    ],
    out: Annotated[Path, Option(metavar="FOLDER", help="Where it is written.")],
    size: Annotated[int, Option(help="Ids of the vocabulary.")] = 4096,
    column: Annotated[str, Option(metavar="COLUMN", help="Column of texts in tables.")] = "",
    as_json: AsJson = False,
) -> int:
    """Learn byte-pair encoding from texts and write it as a folder.

    The folder opens in transformers and in [bold]model.new.tokenizer[/] of a recipe for
    pre-training. The same texts give the same file.

    \b
      burnish tokenizer train books/ --size 4096 --out my_tokenizer
      burnish train pretrain train.data=books/ model.new.tokenizer=my_tokenizer
    """
    with needed("tokenizers", "torch"):
        from burnish.lm.new_model import train_bpe
        from burnish.lm.tokenizer import Tokenizer
    from burnish.tasks.corpus import Corpus

    as_new_folder("--out", out)
    corpus = Corpus(tuple(data), column)
    seen = 0

    def pieces() -> Iterator[str]:
        nonlocal seen
        for piece in corpus.pieces():
            seen += len(piece.text.encode())
            yield piece.text

    made = train_bpe(pieces(), size, out)
    sample = next(corpus.pieces()).text[:20_000]
    ids = Tokenizer.from_folder(out).encode(sample)
    per_token = len(sample.encode()) / max(len(ids), 1)
    if as_json:
        emit_json({"folder": str(out), "size": made, "bytes": seen, "bytes_per_token": per_token})
        return 0
    say(
        f"tokenizer {shown_path(out)}: {made:,} ids from {seen:,} bytes of text, {per_token:.2f} bytes a token"
    )
    if made < size:
        say(f"the text has no more pairs to join: {made:,} ids instead of {size:,}", style="yellow")
    return 0
