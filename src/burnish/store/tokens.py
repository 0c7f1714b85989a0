"""The tokens of a sample, as the columns `token_ids`, `loss_mask`, `logprobs` and `spans` hold them.

The first three lie side by side as JSON arrays, one entry a token (a log-prob is `null` where
nobody sampled the token), and `spans` says who wrote which stretch of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
        while lead < len(spans) and not _is_sampled(spans[lead]):
            lead += 1
        key = tuple(map(id, spans[:lead]))
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = _joined([_EMPTY, *_each(spans[:lead], 0)])
        whole = _joined([prompt, *_each(spans[lead:], prompt.tokens)])
        sampled = sum([len(span.token_ids) for span in spans[lead:] if _is_sampled(span)])
        return TokenCells(
            prompt.tokens,
            sampled,
            f"[{whole.ids}]",
            f"[{whole.mask}]",
            f"[{whole.logprobs}]",
            f"[{whole.shapes}]",
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
    """Consecutive tokens as JSON arrays without their brackets: empty texts where there is none."""

    tokens: int
    ids: str
    mask: str
    logprobs: str
    shapes: str


_EMPTY = _Stretch(0, "", "", "", "")
_ENCODER = msgspec.json.Encoder()
_SHAPES = msgspec.json.Decoder(tuple[SpanShape, ...])
_TOKENS = msgspec.json.Decoder(tuple[int, ...])
_LOGPROBS = msgspec.json.Decoder(tuple[float | None, ...])


def _is_sampled(span: Span) -> bool:
    return span.author is Author.MODEL and len(span.token_ids) > 0


def _each(spans: Sequence[Span], start: int) -> list[_Stretch]:
    """One stretch a span; `start` is the place of the first token in its trajectory."""
    found = []
    for span in spans:
        tokens = len(span.token_ids)
        if span.logprobs:
            _check_logprobs(span, start)
        found.append(
            _Stretch(
                tokens,
                _inside(span.token_ids),
                ",".join(("1" if span.trainable else "0",) * tokens),
                _inside(span.logprobs) if span.logprobs else ",".join(("null",) * tokens),
                _ENCODER.encode(SpanShape(span.author, tokens, span.trainable)).decode(),
            )
        )
        start += tokens
    return found


def _joined(parts: Iterable[_Stretch]) -> _Stretch:
    tokens, ids, mask, logprobs, shapes = zip(*parts, strict=True)
    return _Stretch(
        sum(tokens),
        ",".join(filter(None, ids)),
        ",".join(filter(None, mask)),
        ",".join(filter(None, logprobs)),
        ",".join(filter(None, shapes)),
    )


def _inside(values: tuple[float, ...]) -> str:
    return _ENCODER.encode(values)[1:-1].decode()


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
