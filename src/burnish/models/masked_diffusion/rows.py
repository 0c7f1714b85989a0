"""Which tokens may be masked: of a record the answer, of a structured prompt its syntax (SyRM, ISAD).

    rows = collate([{"input_ids": [5, 6, 7], "prompt_length": 2}])
    is_syntax("</td>", "html")                   # True
    syntax_eligible(tokens, "python")            # of a prompt; joins the answer's tokens
    template_tokens(answers)                     # ids that nearly every answer has: delimiters

SyRM lets syntax tokens of a structured prompt be masked too. They join what is learned, so the objective
changes: a small bias, on purpose.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from burnish.boundary import Count, PositiveInt, PositiveShare, public
from burnish.errors import ArgumentError
from burnish.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


Format = Literal["html", "markdown", "json", "python"]

_TAGS = """
a b body br caption center code col colgroup colspan div em form h1 h2 h3 h4 h5 h6 head html i img input
label li link ol option p pre rowspan script select span strong style sub sup table tbody td tfoot th thead
title tr u ul class id href src align border
"""
"""And attributes."""
_HTML = set(_TAGS.split())
_JSON = {"true", "false", "null"}
_PYTHON = {*keyword.kwlist, "self"}
_SIGNS = {
    "html": r"[<>/=\"'!&;-]+",
    "markdown": r"[|#*_`>~+=:\[\]()!-]+",
    "json": r"[{}\[\]:,\"]+",
    "python": r"[()\[\]{}:,.;=+*/%<>!&|^~@\\\"'#-]+",
}
_WORDS = {"html": _HTML, "markdown": set[str](), "json": _JSON, "python": _PYTHON}
_BREAKS = {"html": False, "markdown": True, "json": False, "python": True}
"""Where line breaks, and in Python indentation, are part of the syntax."""


class Rows(NamedTuple):
    """Rows of one length, padded on the right."""

    ids_XL: Tensor
    eligible_XL: Tensor
    """The answer, without padding."""
    attention_XL: Tensor
    dropped: int
    """Rows without an answer, or whose answer was cut off."""


TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Record(TypedDict):
    """Token ids, and how many of them are the prompt."""

    input_ids: NotRequired[Sequence[TokenId]]
    ids: NotRequired[Sequence[TokenId]]
    prompt_length: NotRequired[Count]
    prompt_len: NotRequired[Count]


@public
def collate(rows: Sequence[Record], max_length: PositiveInt = 4096, pad_id: TokenId = 0) -> Rows:
    """Rows `{"input_ids": [...], "prompt_length": n}` as one batch; rows without an answer are dropped.

    `ids` and `prompt_len` are read too; without a prompt length all is answer.

    >>> collate([{"input_ids": [5, 6, 7], "prompt_length": 2}, {"ids": [5]}]).eligible_XL.tolist()
    [[False, False, True], [True, False, False]]
    """
    kept: list[tuple[list[int], int]] = []
    for row in rows:
        prompt = row.get("prompt_length", row.get("prompt_len", 0))
        tokens = list(row.get("input_ids", row.get("ids", ())))[:max_length]
        if len(tokens) > prompt:
            kept.append((tokens, prompt))
    if not kept:
        raise ArgumentError(
            f"rows: none of {len(rows)} has an answer within {max_length} tokens; expected input_ids "
            "longer than prompt_length"
        )
    length = max(len(tokens) for tokens, _ in kept)
    ids_XL = torch.tensor([tokens + [pad_id] * (length - len(tokens)) for tokens, _ in kept])
    sizes_X = torch.tensor([len(tokens) for tokens, _ in kept])
    prompt_X = torch.tensor([prompt for _, prompt in kept])
    place_L = torch.arange(length)
    real_XL = place_L < sizes_X[:, None]
    eligible_XL = real_XL & (place_L >= prompt_X[:, None])
    return Rows(ids_XL, eligible_XL, real_XL, len(rows) - len(kept))


@public
def is_syntax(token: str, format: Format) -> bool:
    """True if a token is syntax of a format: tags, brackets, keywords, indentation.

    Spaces that tokenizers write as `Ġ`, `▁` or `Ċ` are read as such. A token that mixes syntax and
    content, such as `>Name`, is content; `</td` is syntax.

    >>> is_syntax("</td>", "html"), is_syntax("Paris", "html"), is_syntax("Ġdef", "python")
    (True, False, True)
    """
    plain = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n").replace("ĉ", "\t")
    if not plain.strip():
        breaks = "\n" in plain or (format == "python" and (len(plain) > 1 or "\t" in plain))
        return _BREAKS[format] and breaks
    for piece in re.findall(r"\w+|[^\w\s]+|_+", plain):
        word = piece.lower() if format == "html" else piece
        if word not in _WORDS[format] and not re.fullmatch(_SIGNS[format], piece):
            return False
    return True


@public
def syntax_eligible(tokens: Sequence[str], format: Format) -> list[bool]:
    """Which tokens of a prompt are syntax.

    >>> syntax_eligible(["{", '"', "name", '":'], "json")
    [True, True, False, True]
    """
    return [is_syntax.plain(token, format) for token in tokens]


@public
def template_tokens(
    answers: Annotated[Sequence[Sequence[Count]], Meta(min_length=1)], share: PositiveShare = 0.95
) -> list[int]:
    """Ids that at least this share of the answers have: their fixed template, such as `####`.

    >>> template_tokens([[5, 9, 7], [6, 9, 8], [9, 4]])
    [9]
    """
    found = Counter(one for row in answers for one in set(row))
    return sorted(one for one, count in found.items() if count >= share * len(answers))
