"""Whether a model's logits are one matrix product, so that they need not be held at once."""

from __future__ import annotations

from torch import Tensor

from burnish.lm.decoder import Decoder, Linear


def plain_head(model: object) -> Tensor | None:
    """The weight (V, D) of a model whose logits are one matrix product and nothing else.

    None for models from transformers, which may scale or cap their logits, and for a head with an
    adapter.
    """
    if not isinstance(model, Decoder):
        return None
    is_plain = model.lm_head is None or type(model.lm_head) is Linear
    return model.head_weight if is_plain else None
