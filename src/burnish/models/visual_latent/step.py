"""Training with latents: teacher forcing over any decoder that takes `inputs_embeds`.

A row is tokens, with vectors in the place of some: those of an image, which are given, and latent
slots, which the model learns to predict. The state before a slot predicts it; slots have no label.

    step = latent_step(model, head, rows, alpha=1.0)
    step.loss.backward()
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.boundary import NonNegative, public
from burnish.errors import ArgumentError
from burnish.models.norm_report import find_layers
from burnish.models.visual_latent.head import Hidden, LatentHead, Predicted
from burnish.models.visual_latent.objective import cosine_loss
from burnish.tensors import check_shape

IGNORED = -100
"""Label of what has no part in the loss of the text."""


class LatentRows(NamedTuple):
    """A batch: tokens, and vectors in the place of some."""

    ids_BT: Tensor
    """Any token at the places of vectors."""
    mask_BT: Tensor
    """bool: what is no padding."""
    vectors_BTD: Tensor
    """Image embeddings, and targets at latent slots; not read elsewhere."""
    is_image_BT: Tensor
    is_latent_BT: Tensor
    labels_BT: Tensor | None = None
    """The token at each place, -100 where it does not count."""


class LatentStep(NamedTuple):
    """Of one batch."""

    loss: Tensor
    parts: dict[str, Tensor]
    """text, latent and cosine, before their weights."""
    predicted: Predicted
    """From the state before each place, (B, T - 1, ...): entry t predicts place t + 1."""
    hidden: Hidden
    """Those states."""


class Decoded(NamedTuple):
    """Of one forward pass."""

    logits: Tensor
    hidden: Hidden
    cache: Any


def decode(
    model: nn.Module,
    inputs_BTD: Tensor,
    mask_BS: Tensor,
    positions_BT: Tensor,
    cache: Any = None,
    *,
    use_cache: bool = False,
) -> Decoded:
    """Run a decoder over embeddings; S is T and what the cache holds.

    One of transformers, or what has `decode_vectors` of its own (`burnish.lm.vectors`).
    """
    own = getattr(model, "decode_vectors", None)
    if own is not None:
        found: Decoded = own(inputs_BTD, mask_BS, positions_BT, cache, use_cache=use_cache)
        return found
    text = _text_model(model)
    seen: dict[str, Tensor] = {}

    def see_layer(_module: nn.Module, _args: Any, output: Any) -> None:
        seen["raw"] = _stream(output)

    def see_model(_module: nn.Module, _args: Any, output: Any) -> None:
        seen["normed"] = output[0]

    hooks = (
        find_layers(text)[1][-1].register_forward_hook(see_layer),
        text.register_forward_hook(see_model),
    )
    try:
        output = model(
            inputs_embeds=inputs_BTD,
            attention_mask=mask_BS.long(),
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=use_cache,
        )
    finally:
        for hook in hooks:
            hook.remove()
    cache = output.past_key_values if use_cache else None
    return Decoded(output.logits, Hidden(seen["raw"], seen["normed"]), cache)


def embedded(model: nn.Module, head: LatentHead, rows: LatentRows) -> Tensor:
    """Input embeddings (B, T, D): tokens, image vectors, and targets as the head feeds them."""
    check_rows(rows)
    embed: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    tokens_BTD: Tensor = embed(rows.ids_BT)
    check_shape(rows.vectors_BTD, "vectors_BTD", tuple(tokens_BTD.shape))
    if not (rows.is_image_BT.any() or rows.is_latent_BT.any()):
        return tokens_BTD
    image_BTD = rows.vectors_BTD.to(tokens_BTD)
    fed_BTD = head.as_input(rows.vectors_BTD).to(tokens_BTD)
    inputs_BTD = torch.where(rows.is_image_BT.unsqueeze(-1), image_BTD, tokens_BTD)
    return torch.where(rows.is_latent_BT.unsqueeze(-1), fed_BTD, inputs_BTD)


def positions(mask_BT: Tensor) -> Tensor:
    """Place of each token in its row, (B, T), padding not counted."""
    return (mask_BT.long().cumsum(1) - 1).clamp(min=0)


@public
def latent_step(
    model: nn.Module,
    head: LatentHead,
    rows: LatentRows,
    *,
    alpha: NonNegative = 1.0,
    beta: NonNegative = 0.0,
    own_B: Tensor | None = None,
) -> LatentStep:
    """The loss `text + alpha latent + beta cosine` of a batch.

    `own_B` (bool) marks rows whose slots are fed with the head's own predictions in the place of
    the targets, without a gradient through them: one more pass for each slot of those rows.
    """
    inputs_BTD = embedded(model, head, rows)
    if own_B is not None and own_B.any():
        is_own_BT1 = (own_B.unsqueeze(1) & rows.is_latent_BT).unsqueeze(-1)
        own_BTD = own_latents(model, head, rows, inputs_BTD, own_B)
        inputs_BTD = torch.where(is_own_BT1, own_BTD, inputs_BTD)
    out = decode(model, inputs_BTD, rows.mask_BT, positions(rows.mask_BT))
    before = Hidden(*(state[:, :-1] for state in out.hidden))
    predicted = head(before)
    slots_BT, targets_BTD = rows.is_latent_BT[:, 1:], rows.vectors_BTD[:, 1:]
    text = _text_loss(out.logits, rows)
    latent = head.loss(predicted, targets_BTD, slots_BT)
    parts = {"text": text, "latent": latent, "cosine": latent.new_zeros(())}
    loss = text
    # Terms without weight stay out: without latents this is the loss of plain SFT, bit for bit.
    if alpha:
        loss = loss + alpha * latent
    if beta:
        parts["cosine"] = cosine_loss.plain(predicted.vector, targets_BTD.detach(), slots_BT)
        loss = loss + beta * parts["cosine"]
    return LatentStep(loss, parts, predicted, before)


@torch.no_grad()
def own_latents(
    model: nn.Module, head: LatentHead, rows: LatentRows, inputs_BTD: Tensor, own_B: Tensor
) -> Tensor:
    """Inputs in which the slots of some rows hold the head's own predictions, made one after another."""
    order_BT = rows.is_latent_BT.long().cumsum(1) * rows.is_latent_BT
    own_BTD, mask_BT, order_BT = inputs_BTD[own_B].clone(), rows.mask_BT[own_B], order_BT[own_B]
    for number in range(1, int(order_BT.max()) + 1):
        is_next_BT = order_BT == number
        last = int(is_next_BT.any(0).nonzero().max())
        seen_BT = mask_BT[:, :last]
        out = decode(model, own_BTD[:, :last], seen_BT, positions(seen_BT))
        vectors_BTD = head.guard(head(out.hidden).vector).vector.to(own_BTD)
        chosen_BT1 = is_next_BT[:, 1 : last + 1].unsqueeze(-1)
        own_BTD[:, 1 : last + 1] = torch.where(chosen_BT1, vectors_BTD, own_BTD[:, 1 : last + 1])
    found_BTD = inputs_BTD.clone()
    found_BTD[own_B] = own_BTD
    return found_BTD


def check_rows(rows: LatentRows) -> None:
    """Refuse rows that contradict themselves."""
    shape = tuple(rows.ids_BT.shape)
    for name in ("mask_BT", "is_image_BT", "is_latent_BT"):
        mask = getattr(rows, name)
        check_shape(mask, name, shape)
        if mask.dtype != torch.bool:
            raise ArgumentError(f"{name}: got {mask.dtype}, expected bool")
    if (rows.is_image_BT & rows.is_latent_BT).any():
        raise ArgumentError("is_latent_BT: a place is both image and latent, expected one of them")
    if rows.is_latent_BT[:, :1].any():
        raise ArgumentError("is_latent_BT: the first place has no state before it to predict it")


def _text_loss(logits_BTV: Tensor, rows: LatentRows) -> Tensor:
    if rows.labels_BT is None:
        return logits_BTV.new_zeros((), dtype=torch.float32)
    check_shape(rows.labels_BT, "labels_BT", tuple(rows.ids_BT.shape))
    is_vector_BT = rows.is_latent_BT | rows.is_image_BT
    labels_BT = rows.labels_BT.masked_fill(is_vector_BT, IGNORED)[:, 1:]
    if not (labels_BT != IGNORED).any():
        return logits_BTV.float().sum() * 0.0
    logits = logits_BTV[:, :-1].float()
    return F.cross_entropy(logits.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED)


def _text_model(model: nn.Module) -> nn.Module:
    """The module that ends in hidden states, without the head over the vocabulary."""
    get = getattr(model, "get_decoder", None)
    found = get() if callable(get) else getattr(model, "base_model", None)
    if not isinstance(found, nn.Module) or found is model:
        raise ArgumentError(f"{type(model).__name__}: expected a causal model of transformers")
    return found


def _stream(output: Any) -> Tensor:
    """The residual stream behind a layer; Y of two streams."""
    if isinstance(output, tuple) and len(output) == 3 and isinstance(output[2], list):
        output = output[0] if output[1] is None else output[1]
    found = output[0] if isinstance(output, tuple) else output
    if not isinstance(found, Tensor):
        raise ArgumentError(f"the last layer gives {type(found).__name__}, expected hidden states")
    return found
