"""`burnish layers`: what each layer of a model is worth."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.cli.console import Reporter, emit_json, interval, number, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson, LocalModelName

TEXTS = Path(__file__).parent / "starters" / "pretrain" / "my_texts.jsonl"
"""What is read where no text is given: the texts of `burnish init pretrain`."""


def layers(
    model: LocalModelName,
    text: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]",
            help="Files or folders of text, JSONL, CSV or Parquet; without it, short texts that ship.",
        ),
    ] = None,
    documents: Annotated[int, Option(min=2, help="How many are read.")] = 16,
    tokens: Annotated[int, Option(min=2, help="Of each document.")] = 256,
    separator: Annotated[str, Option(help="Cuts one text into documents.")] = "",
    as_json: AsJson = False,
) -> int:
    """How much worse a model predicts text without each layer, and without the last quarter.

    The loss is in nats a token, and like its change the mean over documents,
    each of which counts the same; changes are paired, with 95 % intervals. A
    layer without which nothing changes may be pruned.

    \b
      burnish layers smollm2
      burnish layers smollm2 notes/
      burnish layers runs/NAME books.jsonl --documents 64 --json
    """
    from burnish.api.needs import require_torch

    require_torch("models in this process")
    from burnish.api.layers import measure_layers

    with Reporter() as report:
        tell = partial(report, "measuring groups of layers")
        tell(0, 1)
        found = measure_layers(
            model,
            text or [str(TEXTS)],
            documents=documents,
            tokens=tokens,
            separator=separator,
            on_group=tell,
        )
    if as_json:
        emit_json(found.to_json())
        return 0
    bound = ", a bound" if found.is_bound else ""
    say(
        f"{found.model}: {number(found.loss)} nats a token{bound}, mean over {found.documents} "
        f"documents, {found.tokens:,} tokens{'' if text else ' of the texts that ship'}",
        style="bold",
    )
    rows = []
    for effect in found.effects:
        # Layers are counted from 1 for people, as in the viewer.
        first, last = effect.layers[0] + 1, effect.layers[-1] + 1
        name = f"{first}" if first == last else f"{first} to {last}"
        loss = "not finite" if effect.loss is None else number(effect.loss)
        rows.append((name, loss, "" if effect.change is None else interval(effect.change)))
    print_rows(("without layer", "nats a token", "change"), rows)
    return 0
