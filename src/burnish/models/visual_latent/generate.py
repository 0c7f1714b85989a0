"""Generation that mixes words and latents, row by row, with a key-value cache.

A row writes text until it writes the opening tag; then exactly so many latents, each fed back as the
next input; then the closing tag is forced and it goes on with text. Rows in text and rows among latents
advance together. For evaluation, the latents that are fed can be replaced (`intervention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, get_args

import torch
from msgspec import Meta
from torch import Tensor, nn

from burnish.boundary import NonNegative, public
from burnish.errors import ArgumentError
from burnish.models.visual_latent.head import Hidden, LatentHead
from burnish.models.visual_latent.step import LatentRows, decode, embedded, positions

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
        self.clipped = 0
        self.spans_left = spans_left
        self.slots_left: int | None = None
        """Latents still to come in the open span; None outside."""
        self.is_done = self.is_finished = False

    def open(self, slots: int) -> None:
        self.spans_left -= 1
        self.slots_left = slots
        self.latents.append([])
        self.predicted.append([])

    def answer(self, empty_0D: Tensor) -> LatentAnswer:
        def stacked(spans: list[list[Tensor]]) -> list[Tensor]:
            return [torch.stack(span) if span else empty_0D for span in spans]

        return LatentAnswer(
            self.ids,
            stacked(self.latents),
            stacked(self.predicted),
            self.clipped,
            self.is_finished,
        )


@public
@torch.no_grad()
def generate_latents(
    model: nn.Module,
    head: LatentHead,
    prompts: LatentRows,
    tags: LatentTags,
    *,
    slots: Annotated[int, Meta(ge=1, le=1 << 16)],
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 20)],
    max_spans: Annotated[int, Meta(ge=0, le=1 << 16)] = 1,
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
    count = len(prompts.ids_BT)
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
        picked = _pick(out.logits[:, -1], rows, tags, temperature, generator)
        fed_BD, is_latent = safe_BD.clone(), [False] * count
        for index, row in enumerate(rows):
            if row.is_done:
                picked[index] = tags.stop
            elif row.slots_left:
                is_latent[index] = True
                row.clipped += int(is_clipped_B[index])
                fed_BD[index] = _fed(head, intervention, given, index, row, safe_BD, generator)
                row.predicted[-1].append(safe_BD[index])
                row.latents[-1].append(fed_BD[index].clone())
                row.slots_left -= 1
            else:
                picked[index] = _write(row, picked[index], tags, span_slots, max_tokens)
        if all(row.is_done for row in rows):
            return [row.answer(safe_BD.new_zeros(0, safe_BD.shape[1])) for row in rows]
        words_BD: Tensor = embed(torch.tensor(picked, device=mask_BS.device))
        chosen_B1 = torch.tensor(is_latent, device=mask_BS.device).unsqueeze(1)
        inputs_BTD = torch.where(chosen_B1, fed_BD.to(words_BD), words_BD).unsqueeze(1)
        mask_BS = torch.cat((mask_BS, torch.ones_like(mask_BS[:, :1])), 1)
        place_BT = positions(mask_BS)[:, -1:]


def _write(row: _Row, token: int, tags: LatentTags, slots: int, max_tokens: int) -> int:
    """Let a row write a token: the end tag if its span is full. Gives the token back."""
    if row.slots_left == 0:
        token, row.slots_left = tags.end, None
    elif token == tags.start:
        row.open(slots)
    row.ids.append(token)
    row.is_finished = token == tags.stop
    # A span that was opened is filled and closed, so that every answer has both tags.
    row.is_done = row.is_finished or (len(row.ids) >= max_tokens and row.slots_left is None)
    return token


def _pick(
    logits_BV: Tensor,
    rows: list[_Row],
    tags: LatentTags,
    temperature: float,
    generator: torch.Generator | None,
) -> list[int]:
    """A token for each row; the start tag only where another span is allowed."""
    logits_BV = logits_BV.float().clone()
    is_full = torch.tensor([row.spans_left <= 0 for row in rows], device=logits_BV.device)
    logits_BV[is_full, tags.start] = -torch.inf
    if not temperature:
        return [int(token) for token in logits_BV.argmax(1).tolist()]
    chances_BV = (logits_BV / temperature).softmax(1)
    drawn_B1 = torch.multinomial(chances_BV, 1, generator=generator)
    return [int(token) for token in drawn_B1[:, 0].tolist()]


def _given(
    intervention: str, latents: Sequence[Sequence[Tensor]] | None, count: int, slots: int
) -> list[list[Tensor]] | None:
    """Spans to feed, by row; those of the next row that has any for `shuffle`."""
    if intervention not in ("shuffle", "oracle"):
        if latents is not None:
            raise ArgumentError(
                f"latents: not used by the intervention {intervention}; leave them out"
            )
        return None
    found = [list(spans) for spans in latents or ()]
    if len(found) != count or any(len(span) != slots for spans in found for span in spans):
        raise ArgumentError(
            f"latents: got those of {len(found)} rows, expected spans of {slots} for each of the {count}"
        )
    if intervention == "oracle":
        return found
    shuffled = []
    for index in range(count):
        others = [found[(index + step) % count] for step in range(1, count)]
        donors = [spans for spans in others if spans]
        if not donors:
            raise ArgumentError(f"latents: no other row has a span to give to row {index}")
        shuffled.append(donors[0])
    return shuffled


def _fed(
    head: LatentHead,
    intervention: str,
    given: list[list[Tensor]] | None,
    index: int,
    row: _Row,
    safe_BD: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """The vector that a row is fed as its next latent, (D,)."""
    if given is not None:
        span = given[index][len(row.latents) - 1]
        return head.as_input(span[len(row.latents[-1])]).to(safe_BD)
    if intervention == "zero":
        return torch.zeros_like(safe_BD[index])
    if intervention == "mean":
        return head.mean
    if intervention == "noise":
        size = len(head.eigenvalues)
        device = safe_BD.device if generator is None else generator.device
        return head.noise(torch.randn(size, generator=generator, device=device)).to(safe_BD)
    return safe_BD[index]
