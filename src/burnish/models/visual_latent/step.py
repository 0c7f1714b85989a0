"""Training and generation with latents, over any decoder that takes `inputs_embeds`.

A row is tokens, with vectors in the place of some: those of an image, which are given, and latent
slots, which the model learns to predict. The state before a slot predicts it; slots have no label.

In generation a row writes text until it writes the opening tag; then exactly so many latents, each fed
back as the next input; then the closing tag is forced and it goes on with text. Rows in text and rows
among latents advance together. For evaluation, what is fed can be replaced (`intervention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.boundary import Count, NonNegative, PositiveInt, public
from burnish.errors import ArgumentError
from burnish.models.norm_report import find_layers, main_stream, streams_after
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
    get = getattr(model, "get_decoder", None)
    text = get() if callable(get) else getattr(model, "base_model", None)
    if not isinstance(text, nn.Module) or text is model:
        raise ArgumentError(f"{type(model).__name__}: expected a causal model of transformers")
    seen: dict[str, Tensor] = {}

    def see_layer(_module: nn.Module, _args: Any, output: Any) -> None:
        seen["raw"] = main_stream(streams_after(output))

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
    shape = tuple(rows.ids_BT.shape)
    for name in ("mask_BT", "is_image_BT", "is_latent_BT"):
        check_shape(getattr(rows, name), name, shape)
    if (rows.is_image_BT & rows.is_latent_BT).any() or rows.is_latent_BT[:, :1].any():
        raise ArgumentError("is_latent_BT: a place is first in its row, or an image too")
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
    text = out.logits.new_zeros((), dtype=torch.float32)
    if rows.labels_BT is not None:
        check_shape(rows.labels_BT, "labels_BT", tuple(rows.ids_BT.shape))
        labels_BT = rows.labels_BT.masked_fill(rows.is_latent_BT | rows.is_image_BT, IGNORED)[:, 1:]
        if (labels_BT != IGNORED).any():
            logits = out.logits[:, :-1].float().flatten(0, 1)
            text = F.cross_entropy(logits, labels_BT.flatten(), ignore_index=IGNORED)
        else:
            text = out.logits.float().sum() * 0.0
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


Intervention = Literal["none", "zero", "mean", "noise", "shuffle", "skip", "oracle"]
INTERVENTIONS = get_args(Intervention)


class LatentTags(NamedTuple):
    """Token ids with a meaning in generation."""

    start: int
    """Opens a span of latents."""
    end: int
    """Closes it; forced after the last latent."""
    stop: int
    """Ends the answer."""


class LatentAnswer(NamedTuple):
    """One row."""

    ids: list[int]
    """Tokens, tags included; latents stand between a start and an end tag and are no tokens."""
    latents: list[Tensor]
    """What was fed in each span, (K, D)."""
    predicted: list[Tensor]
    """What the head predicted there; differs from `latents` under an intervention."""
    clipped: int
    """Predictions that the guard cut."""
    is_finished: bool
    """Whether the stop token was written."""


class _Row:
    """Where one row stands."""

    def __init__(self, spans_left: int) -> None:
        self.ids: list[int] = []
        self.latents: list[list[Tensor]] = []
        self.predicted: list[list[Tensor]] = []
        self.clipped, self.spans_left = 0, spans_left
        self.slots_left: int | None = None
        """Latents still to come in the open span; None outside."""
        self.is_done = self.is_finished = False

    def open(self, slots: int) -> None:
        self.spans_left -= 1
        self.slots_left = slots
        self.latents.append([])
        self.predicted.append([])

    def write(self, token: int, tags: LatentTags, slots: int, max_tokens: int) -> int:
        """Write a token: the end tag if the span is full. Gives the token back."""
        if self.slots_left == 0:
            token, self.slots_left = tags.end, None
        elif token == tags.start:
            self.open(slots)
        self.ids.append(token)
        self.is_finished = token == tags.stop
        # A span that was opened is filled and closed, so that every answer has both tags.
        self.is_done = self.is_finished or (len(self.ids) >= max_tokens and self.slots_left is None)
        return token

    def answer(self, empty_0D: Tensor) -> LatentAnswer:
        latents, predicted = (
            [torch.stack(span) if span else empty_0D for span in spans]
            for spans in (self.latents, self.predicted)
        )
        return LatentAnswer(self.ids, latents, predicted, self.clipped, self.is_finished)


@public
@torch.no_grad()
def generate_latents(
    model: nn.Module,
    head: LatentHead,
    prompts: LatentRows,
    tags: LatentTags,
    *,
    slots: PositiveInt,
    max_tokens: PositiveInt,
    max_spans: Count = 1,
    temperature: NonNegative = 0.0,
    generator: torch.Generator | None = None,
    intervention: Intervention = "none",
    latents: Sequence[Sequence[Tensor]] | None = None,
) -> list[LatentAnswer]:
    """Answers to prompts (B, P), padded on the left; a prompt that ends in the start tag opens a span.

    `slots` latents a span, at most `max_spans` spans: after these the start tag is banned.
    `max_tokens` counts tokens, not latents. Interventions replace what is fed: zero; mean; noise, drawn
    with the embeddings' covariance; shuffle, `latents` of the next row (`LatentAnswer.latents` of a
    plain generation); oracle, `latents` of the row itself, such as targets; skip leaves the slots out.
    """
    if not prompts.mask_BT[:, -1].all():
        raise ArgumentError("prompts: a row ends in padding, expected padding on the left")
    count, given = len(prompts.ids_BT), None
    if intervention in ("shuffle", "oracle") or latents is not None:
        given = _given(intervention, latents, count, slots)
    allowed = [max_spans if given is None else len(given[index]) for index in range(count)]
    rows = [_Row(min(spans, max_spans)) for spans in allowed]
    span_slots = 0 if intervention == "skip" else slots
    for index, last in enumerate(prompts.ids_BT[:, -1].tolist()):
        if last == tags.start:
            if given is not None and not given[index]:
                raise ArgumentError(f"latents: row {index} opens a span and has none to be fed")
            rows[index].open(span_slots)
    embed: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    inputs_BTD, mask_BS = embedded(model, head, prompts), prompts.mask_BT
    place_BT, cache = positions(mask_BS), None
    while True:
        out = decode(model, inputs_BTD, mask_BS, place_BT, cache, use_cache=True)
        cache = out.cache
        found = head(Hidden(*(state[:, -1] for state in out.hidden)))
        safe_BD, is_clipped_B = head.guard(found.vector)
        logits_BV = out.logits[:, -1].float().clone()
        is_full = torch.tensor([row.spans_left <= 0 for row in rows], device=logits_BV.device)
        logits_BV[is_full, tags.start] = -torch.inf
        picked_B = logits_BV.argmax(1)
        if temperature:
            chances_BV = (logits_BV / temperature).softmax(1)
            picked_B = torch.multinomial(chances_BV, 1, generator=generator)[:, 0]
        picked: list[int] = picked_B.tolist()
        fed_BD, is_latent = safe_BD.clone(), [False] * count
        for index, row in enumerate(rows):
            if row.is_done:
                picked[index] = tags.stop
            elif row.slots_left:
                is_latent[index] = True
                row.clipped += int(is_clipped_B[index])
                if given is not None:
                    span = given[index][len(row.latents) - 1]
                    fed_BD[index] = head.as_input(span[len(row.latents[-1])]).to(safe_BD)
                elif intervention == "zero":
                    fed_BD[index] = 0.0
                elif intervention == "mean":
                    fed_BD[index] = head.mean
                elif intervention == "noise":
                    device = safe_BD.device if generator is None else generator.device
                    draws = torch.randn(len(head.eigenvalues), generator=generator, device=device)
                    fed_BD[index] = head.noise(draws).to(safe_BD)
                row.predicted[-1].append(safe_BD[index])
                row.latents[-1].append(fed_BD[index].clone())
                row.slots_left -= 1
            else:
                picked[index] = row.write(picked[index], tags, span_slots, max_tokens)
        if all(row.is_done for row in rows):
            return [row.answer(safe_BD.new_zeros(0, safe_BD.shape[1])) for row in rows]
        words_BD: Tensor = embed(torch.tensor(picked, device=mask_BS.device))
        chosen_B1 = torch.tensor(is_latent, device=mask_BS.device).unsqueeze(1)
        inputs_BTD = torch.where(chosen_B1, fed_BD.to(words_BD), words_BD).unsqueeze(1)
        mask_BS = torch.cat((mask_BS, torch.ones_like(mask_BS[:, :1])), 1)
        place_BT = positions(mask_BS)[:, -1:]


def _given(
    intervention: str, latents: Sequence[Sequence[Tensor]] | None, count: int, slots: int
) -> list[list[Tensor]]:
    """Spans to feed, by row; those of the next row that has any for `shuffle`."""
    found = [list(spans) for spans in latents or ()]
    is_odd = any(len(span) != slots for spans in found for span in spans)
    if intervention not in ("shuffle", "oracle") or len(found) != count or is_odd:
        raise ArgumentError(
            f"latents: got those of {len(found)} rows for the intervention {intervention}, expected "
            f"spans of {slots} for each of the {count} rows of shuffle or oracle, none otherwise"
        )
    if intervention == "oracle":
        return found
    turned = [[found[(row + step) % count] for step in range(1, count)] for row in range(count)]
    donors = [[spans for spans in others if spans] for others in turned]
    if not all(donors):
        raise ArgumentError("latents: a row has no other with a span, expected one to give it")
    return [others[0] for others in donors]
