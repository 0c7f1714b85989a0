"""Hidden norms of a local model, layer by layer, against those of its embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from burnish.api.needs import needed
from burnish.errors import UserError
from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.models.norm_report import NormGap, measure_norm_gap
from burnish.training.trainable import model_of

TEXT = (
    "The lighthouse keeper wrote the height of the tide into his book every evening. On most days it "
    "was between two and three metres; on the night of the storm it reached four, and the water stood "
    "at the lowest step of the stairs. He counted the steps again in the morning, and two were gone."
)
"""What is read where no text is given."""


@dataclass(frozen=True)
class MeasuredNorms:
    """A norm report and what it is of."""

    model: str
    gap: NormGap

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {"model": self.model, **self.gap.to_json()}


def measure_norms(model: str, text: str = TEXT) -> MeasuredNorms:
    """Measure a model on a text: a shipped name, a folder, or a run's folder.

    Computed in float32, whatever the weights are stored in.
    """
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
    gap = measure_norm_gap(module, lambda: module(ModelInput(ids_1S, positions_1S)), table_VD)
    return MeasuredNorms(str(model), gap)


def draw_norms(found: MeasuredNorms, file: Path) -> None:
    """Lengths over depth as a picture."""
    with needed("pictures", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    gap = found.gap
    figure = Figure(figsize=(6, 3.6))
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    depth = range(len(gap.layers) + 1)
    for name, style in (("mean", "-"), ("rest", "--"), ("largest", ":")):
        values = [getattr(one, name) for one in (gap.embedding, *gap.layers)]
        if None not in values:
            label = {"mean": "mean", "rest": "without the first token", "largest": "largest"}[name]
            axis.plot(depth, values, style, label=label)
    if gap.normed is not None:
        axis.plot([depth[-1]], [gap.normed.mean], "o", label="behind the final norm")
    axis.axhline(gap.embedding.mean, color="grey", linewidth=0.8, label="input embeddings")
    axis.set_yscale("log")
    axis.set_xlabel("layers")
    axis.set_ylabel("length of a token's vector")
    axis.set_title(f"{Path(found.model).name}: {gap.ratio:.3g} times its inputs", fontsize=10)
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=130)
