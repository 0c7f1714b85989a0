"""Which tokens may be masked beside the answer, and which more often (SyRM, ISAD).

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
from typing import Any

from burnish.arguments import as_list, as_number, as_text, as_texts, as_whole, as_word

FORMATS = ("html", "markdown", "json", "python")

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


def is_syntax(token: str, format: str) -> bool:
    """True if a token is syntax of a format: tags, brackets, keywords, indentation.

    Spaces that tokenizers write as `Ġ`, `▁` or `Ċ` are read as such. A token that mixes syntax and
    content, such as `>Name`, is content; `</td` is syntax.

    >>> from burnish.models.masked_diffusion import is_syntax
    >>> is_syntax("</td>", "html"), is_syntax("Paris", "html"), is_syntax("Ġdef", "python")
    (True, False, True)
    """
    text = as_text("token", token)
    format = as_word("format", format, FORMATS)
    plain = text.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n").replace("ĉ", "\t")
    if not plain.strip():
        breaks = "\n" in plain or (format == "python" and (len(plain) > 1 or "\t" in plain))
        return _BREAKS[format] and breaks
    for piece in re.findall(r"\w+|[^\w\s]+|_+", plain):
        is_sign = re.fullmatch(_SIGNS[format], piece) is not None
        if not is_sign and not _is_word(piece, format):
            return False
    return True


def _is_word(piece: str, format: str) -> bool:
    return (piece.lower() if format == "html" else piece) in _WORDS[format]


def syntax_eligible(tokens: Sequence[str], format: str) -> list[bool]:
    """Which tokens of a prompt are syntax.

    >>> from burnish.models.masked_diffusion import syntax_eligible
    >>> syntax_eligible(["{", '"', "name", '":'], "json")
    [True, True, False, True]
    """
    return [is_syntax(token, format) for token in as_texts("tokens", tokens)]


def template_tokens(answers: Sequence[Sequence[int]], share: float = 0.95) -> list[int]:
    """Ids that at least this share of the answers have: their fixed template, such as `####`.

    >>> from burnish.models.masked_diffusion import template_tokens
    >>> template_tokens([[5, 9, 7], [6, 9, 8], [9, 4]])
    [9]
    """
    share = as_number("share", share, above=0, high=1)
    rows: list[Any] = as_list("answers", answers, least=1)
    found = Counter(
        one
        for row in rows
        for one in {as_whole("answers", i, low=0) for i in as_list("answers", row)}
    )
    return sorted(one for one, count in found.items() if count >= share * len(rows))
