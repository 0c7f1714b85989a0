"""The tokens of a sample, as the columns `token_ids`, `loss_mask`, `logprobs` and `spans` hold them.

The first three lie side by side as JSON arrays, one entry a token (a log-prob is `null` where
nobody sampled the token), and `spans` says who wrote which stretch of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec import Struct

from burnish.records import Author, Span


class TokenCells(NamedTuple):
    """One sample's tokens as its row has them."""

    prompt: int
    """Tokens before the model's first."""
    sampled: int
    """Tokens that the model wrote, trained on or not."""
    ids: str
    mask: str
    logprobs: str
    spans: str


class SpanWriter:
    """Encodes the tokens of many rollouts; a prompt that rollouts share, once.

    The rollouts of a group begin with the very same span objects. These are known by identity, so
    they must stay alive while this is used.
    """

    def __init__(self) -> None:
        self._prompts: dict[tuple[int, ...], _Stretch] = {}

    def cells(self, spans: tuple[Span, ...]) -> TokenCells:
        """The cells of one rollout; `ValueError` where a log-prob is missing or not finite."""
        lead = 0
        for span in spans:
            if span.author is _MODEL and span.token_ids:
                break
            lead += 1
        own = spans[lead:]
        key = tuple(map(id, spans[:lead]))
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = _joined(_EMPTY, spans[:lead])
        whole = _joined(prompt, own)
        sampled = sum([len(span.token_ids) for span in own if span.author is _MODEL])
        return TokenCells(
            prompt.tokens,
            sampled,
            f"[{whole.ids[:-1]}]",
            f"[{whole.mask[:-1]}]",
            f"[{whole.logprobs[:-1]}]",
            f"[{whole.shapes[:-1]}]",
        )


def read_spans(shapes: str, token_ids: str, logprobs: str) -> tuple[Span, ...]:
    """The spans from their cells, as they were."""
    tokens = _TOKENS.decode(token_ids)
    sampled = _LOGPROBS.decode(logprobs)
    spans = []
    start = 0
    for shape in _SHAPES.decode(shapes):
        end = start + shape.tokens
        own = tuple(p for p in sampled[start:end] if p is not None)
        spans.append(Span(shape.author, tokens[start:end], own, shape.trainable))
        start = end
    return tuple(spans)


class SpanShape(Struct, frozen=True):
    """Who wrote a stretch of tokens, how many, and whether they are trained."""

    author: Author
    tokens: int
    trainable: bool


class _Stretch(NamedTuple):
    """Consecutive tokens as JSON arrays without their brackets; every entry ends with a comma."""

    tokens: int
    ids: str
    mask: str
    logprobs: str
    shapes: str


_EMPTY = _Stretch(0, "", "", "", "")
_MODEL = Author.MODEL
_ENCODER = msgspec.json.Encoder()
_SHAPES = msgspec.json.Decoder(tuple[SpanShape, ...])
_TOKENS = msgspec.json.Decoder(tuple[int, ...])
_LOGPROBS = msgspec.json.Decoder(tuple[float | None, ...])


def _joined(before: _Stretch, spans: Sequence[Span]) -> _Stretch:
    """The stretch with the spans behind it."""
    count, ids, mask, logprobs, shapes = before
    for span in spans:
        tokens = len(span.token_ids)
        if span.logprobs:
            _check_logprobs(span, count)
            logprobs += _entries(span.logprobs)
        else:
            logprobs += "null," * tokens
        ids += _entries(span.token_ids)
        mask += ("1," if span.trainable else "0,") * tokens
        shapes += _shape(span.author, tokens, span.trainable)
        count += tokens
    return _Stretch(count, ids, mask, logprobs, shapes)


def _entries(values: tuple[float, ...]) -> str:
    return _ENCODER.encode(values)[1:-1].decode() + "," if values else ""


@lru_cache(maxsize=4096)
def _shape(author: Author, tokens: int, trainable: bool) -> str:
    return _ENCODER.encode(SpanShape(author, tokens, trainable)).decode() + ","


def _check_logprobs(span: Span, start: int) -> None:
    if len(span.logprobs) != len(span.token_ids):
        raise ValueError(
            f"a span has {len(span.logprobs)} log-probs for {len(span.token_ids)} tokens"
        )
    # JSON has no NaN. The sum is a quick test; only where it is bad does each number matter.
    if math.isfinite(sum(span.logprobs)):
        return
    for position, logprob in enumerate(span.logprobs, start):
        if not math.isfinite(logprob):
            raise ValueError(
                f"the log-prob of token {position} is {logprob}; expected a finite float"
            )
