"""`burnish norms`: how much longer a model's hidden states are than its embeddings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Argument, Option

from burnish.cli.console import emit_json, err, number, out, say
from burnish.cli.shared_options import AsJson, LocalModelName
from burnish.texts import read_text

if TYPE_CHECKING:
    from burnish.models.norm_report import Lengths, NormGap


def norms(
    model: LocalModelName,
    text: Annotated[
        str, Argument(metavar="[TEXT]", help="What the model reads, or a file of it.")
    ] = "",
    file: Annotated[
        Path | None, Option(metavar="FILE", help="A text file in the place of TEXT.")
    ] = None,
    picture: Annotated[
        Path | None, Option("--out", metavar="FILE", help="Draw it: .png, .svg or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """How much longer a model's hidden states are than what it reads, layer by layer.

    The ratio says whether hidden states may be fed back as inputs, as latent
    reasoning does, or need a head that aligns them (docs/methods/gap.md).

    \b
      burnish norms smollm2
      burnish norms runs/NAME --file text.txt --out norms.png
    """
    from burnish.api.needs import require_torch

    require_torch("models in this process")
    from burnish.api.norms import TEXT, draw_norms, measure_norms
    from burnish.errors import UserError

    if file is not None and text:
        raise UserError("got TEXT and --file; expected one of them")
    if os.path.exists(text):  # False, too, of a text that is too long for a name
        file = Path(text)
    if file is not None:
        text = read_text(file)
    elif not text:
        text = TEXT
    with err.status("measuring ..."):
        found = measure_norms(model, text)
    if picture is not None:
        draw_norms(found, picture)
    if as_json:
        emit_json(found.to_json())
        return 0
    gap = found.gap
    say(f"{found.model}, {gap.tokens} tokens", style="bold")
    table = Table(box=None, pad_edge=False)
    for title in ("", "mean", "x inputs", "first token", "others", "largest"):
        table.add_column(title, justify="right" if title else "left")
    rows = [("embeddings", gap.embedding)]
    rows += [(f"layer {index}", one) for index, one in enumerate(gap.layers, start=1)]
    if gap.normed is not None:
        rows.append(("final norm", gap.normed))
    for name, one in rows:
        table.add_row(name, *_cells(one, gap.embedding.mean))
    out.print(table)
    _print_ratios(gap)
    say(gap.line(), style="yellow" if gap.is_wide else "green")
    if picture is not None:
        say(f"drawn in {picture}", style="bright_black")
    return 0


def _cells(one: Lengths, inputs: float) -> list[str]:
    shown = (one.mean, one.mean / inputs, one.first, one.rest, one.largest)
    return ["" if value is None else f"{value:.3g}" for value in shown]


def _print_ratios(gap: NormGap) -> None:
    parts = [f"last layer {gap.ratio:.3g} x its inputs"]
    if gap.rest_ratio is not None:
        parts.append(f"{gap.rest_ratio:.3g} x without the first token")
    if gap.normed_ratio is not None:
        parts.append(f"{gap.normed_ratio:.3g} x behind the final norm")
    say("; ".join(parts))
    if gap.vocabulary is not None:
        say(
            f"mean embedding of the whole vocabulary: {number(gap.vocabulary)}",
            style="bright_black",
        )
