"""`burnish norms`: how much longer a model's hidden states are than its embeddings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from burnish.api.needs import require_torch
from burnish.cli.console import emit_json, err, number, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson, LocalModelName
from burnish.errors import UserError
from burnish.texts import read_text

if TYPE_CHECKING:
    from burnish.models.norm_report import NormGap

TEXT = (
    "The lighthouse keeper wrote the height of the tide into his book every evening. On most days it "
    "was between two and three metres; on the night of the storm it reached four, and the water stood "
    "at the lowest step of the stairs. He counted the steps again in the morning, and two were gone."
)
"""What is read where no text is given."""


def norms(
    model: LocalModelName,
    text: Annotated[
        str, Argument(metavar="[TEXT]", help="What the model reads, or a file of it.")
    ] = TEXT,
    as_json: AsJson = False,
) -> int:
    """How much longer a model's hidden states are than what it reads, layer by layer.

    The ratio says whether hidden states may be fed back as inputs, as latent
    reasoning does, or need a head that aligns them (docs/methods/gap.md).

    \b
      burnish norms smollm2
      burnish norms runs/NAME text.txt
    """
    require_torch("models in this process")
    if os.path.exists(text):  # False, too, of a text that is too long for a name
        text = read_text(Path(text))
    with err.status("measuring ..."):
        gap = measure_norms(model, text)
    if as_json:
        emit_json({"model": model, **gap.to_json()})
        return 0
    say(f"{model}, {gap.tokens} tokens", style="bold")
    rows = [("embeddings", gap.embedding)]
    rows += [(f"layer {index}", one) for index, one in enumerate(gap.layers, start=1)]
    if gap.normed is not None:
        rows.append(("final norm", gap.normed))
    cells = []
    for name, one in rows:
        figures = (one.mean, one.mean / gap.embedding.mean, one.first, one.rest, one.largest)
        cells.append([name, *("" if value is None else f"{value:.3g}" for value in figures)])
    print_rows(("", "mean", "x inputs", "first token", "others", "largest"), cells)
    ratios = {
        "last layer {} x its inputs": gap.ratio,
        "{} x without the first token": gap.rest_ratio,
        "{} x behind the final norm": gap.normed_ratio,
    }
    told = (text.format(f"{one:.3g}") for text, one in ratios.items() if one is not None)
    say("; ".join(told))
    if gap.vocabulary is not None:
        say(f"mean embedding of the whole vocabulary: {number(gap.vocabulary)}", "bright_black")
    say(gap.line(), style="yellow" if gap.is_wide else "green")
    return 0


def measure_norms(model: str, text: str) -> NormGap:
    """Measure a model on a text: a shipped name, a folder, or a run's folder.

    Computed in float32, whatever the weights are stored in.
    """
    import torch

    from burnish.lm.folder import load_model
    from burnish.lm.model_input import ModelInput
    from burnish.models.norm_report import measure_norm_gap
    from burnish.training.trainable import model_of

    if not text.strip():
        raise UserError("text: got nothing to read; expected some words")
    loaded = load_model(model_of(model), dtype="float32", device="auto")
    module = loaded.module
    for name, weight in module.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(
                f"model '{model}': weight {name} has values that are no numbers; expected sound "
                "weights. Load an earlier checkpoint"
            )
    ids = loaded.tokenizer.encode_data(text)[: module.longest_row(0)]
    ids_1S = torch.tensor([ids], device=loaded.device)
    positions_1S = torch.arange(len(ids), device=loaded.device).unsqueeze(0)
    # The embedding table of the text; an encoder of pictures may have tables of its own.
    parts: list[Any] = list(module.modules())
    tables = [one.get_input_embeddings() for one in parts if hasattr(one, "get_input_embeddings")]
    found = next((one for one in (*tables, *parts) if isinstance(one, torch.nn.Embedding)), None)
    table_VD = None if found is None else found.weight
    return measure_norm_gap(module, lambda: module(ModelInput(ids_1S, positions_1S)), table_VD)
