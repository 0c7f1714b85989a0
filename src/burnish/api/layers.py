"""What each layer of a model is worth: the loss on some text without it, in nats a token, over documents.

Of a masked diffusion model it is a bound, with the same masks for every group of layers. Changes are
paired over documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from burnish.api.models import open_model, text_ids
from burnish.bench.statistics import Estimate, paired_difference
from burnish.boundary import public
from burnish.errors import UserError
from burnish.lm.local import LocalLM
from burnish.models.norm_report import layer_groups, without_each
from burnish.tasks.corpus import Corpus
from burnish.texts import counted


class LayerEffect(NamedTuple):
    """The loss without some layers."""

    layers: tuple[int, ...]
    """Counted from 0."""
    loss: float | None
    """Nats a token, mean over documents; None where the model gave no finite number."""
    change: Estimate | None
    """How much larger it is than with all layers, over documents."""


class LayerDrop(NamedTuple):
    """All groups of layers that were left out."""

    model: str
    loss: float
    """With all layers, nats a token, mean over documents."""
    is_bound: bool
    documents: int
    tokens: int
    effects: list[LayerEffect]
    """Every layer alone, then the last quarter at once where that is more than one layer."""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        effects = [
            {
                "layers": list(one.layers),
                "loss": one.loss,
                "change": None if one.change is None else one.change._asdict(),
            }
            for one in self.effects
        ]
        return {**self._asdict(), "effects": effects}


@public
def measure_layers(
    model: object,
    text: str | Path | Sequence[str],
    *,
    documents: Annotated[int, Meta(ge=2, le=100_000)] = 16,
    tokens: Annotated[int, Meta(ge=2, le=1_000_000)] = 256,
    separator: str = "",
    on_group: Callable[[int, int], None] | None = None,
) -> LayerDrop:
    """The loss on the first documents of a text without each layer, and without the last quarter.

    `text` is a file, a folder or a list of them, as pre-training reads them; of a document the first
    `tokens` count; a `separator` cuts one text into several. `on_group(done, of)` is told after each group of layers.
    """
    lm = open_model(model)
    if not isinstance(lm, LocalLM):
        raise UserError(f"model '{lm.name}' is not in this process; expected smollm2 or a folder.")
    module = lm.loaded.module
    sources = (str(text),) if isinstance(text, str | Path) else tuple(map(str, text))
    corpus = Corpus(sources, separator=separator)
    room = min(tokens, module.longest_row(tokens) - 1)
    texts = [text_ids(lm, one) for one in islice(corpus.documents(), documents)]
    # The first token and those that are predicted from it on.
    pairs = [(list(ids[:1]), list(ids[1 : room + 1])) for ids in texts if len(ids) > 1]
    if len(pairs) < 2:
        raise UserError(
            f"{corpus.name}: {counted(len(pairs), 'document')} with two tokens or more; expected at least 2. One "
            "long text can be cut: --separator."
        )
    groups = layer_groups(module)
    whole = _losses(lm, pairs)
    if any(not math.isfinite(one) for one in whole):
        raise UserError(
            f"model '{lm.name}' gave no finite log-probs; expected weights without NaN."
        )
    effects = []
    for group, found in without_each(module, groups, lambda: _losses(lm, pairs)):
        if all(map(math.isfinite, found)):
            change = paired_difference(whole, found)
            effects.append(LayerEffect(group, fmean(found), change))
        else:
            effects.append(LayerEffect(group, None, None))
        if on_group is not None:
            on_group(len(effects), len(groups))
    size = sum(len(answer) for _, answer in pairs)
    is_bound = lm.score_batch(pairs[:1])[0].is_bound
    return LayerDrop(lm.name, fmean(whole), is_bound, len(pairs), size, effects)


Pair = tuple[list[int], list[int]]


def _losses(lm: LocalLM, pairs: Sequence[Pair]) -> list[float]:
    """Nats a token of each document."""
    return [-math.fsum(scores.logprobs) / len(scores.logprobs) for scores in lm.score_batch(pairs)]
