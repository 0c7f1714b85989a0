"""Verdicts and ratings in free text: replies that were recorded elsewhere, in the forms people use.

    parse_pairwise_verdict("... [[A]]")             # A, B, Tie, Abstain, or error
    parse_rating("Score: 7/10")                     # 7, or None

Replies to our own prompts are read strictly (`burnish.rewards.judges.reading`).
"""

from __future__ import annotations

import re
from typing import Literal, overload

from burnish.arguments import as_text, as_whole, read_each
from burnish.rewards.judges.reading import first_object

Letter = Literal["A", "B", "Tie", "Abstain", "error"]
Texts = list[str] | tuple[str, ...]

TAIL = 500
"""Characters at the end of a reply that was cut; only they can hold its verdict."""

# Capitals alone: `if a > b` in a judge's words is code, not a verdict.
_LABEL = re.compile(r"\b(A\s*>>?\s*B|A\s*=\s*B|B\s*>>?\s*A)\b")
_OUTPUT = re.compile(r"Output\s*\(([ab])\)", re.IGNORECASE)
_FINAL = re.compile(r"^[^\S\n]*Final:\s*(A|B|Tie|Abstain)\s*\.?\s*$", re.IGNORECASE | re.MULTILINE)
_BRACKET = re.compile(r"\[\[(A|B|Tie|Abstain)\]\]", re.IGNORECASE)
_NAMED = re.compile(r"(?:(?:response|assistant|answer|output)\s+)?\(?([ab])\)?", re.IGNORECASE)
_RATING = re.compile(r"(?<![\w.,/-])(-?\d{1,9})(?:\s*(?:/|out of)\s*(\d{1,9}))?$", re.IGNORECASE)
_FIELDS = ("winner", "verdict", "best_label", "choice", "answer")
_TIES = frozenset({"tie", "same", "draw", "equal", "no preference"})
_ABSTENTIONS = frozenset({"abstain", "unclear", "cannot determine"})


@overload
def parse_pairwise_verdict(texts: str, finish_reason: str | None = None) -> Letter: ...
@overload
def parse_pairwise_verdict(texts: Texts, finish_reason: str | None = None) -> list[Letter]: ...
def parse_pairwise_verdict(
    texts: str | Texts, finish_reason: str | None = None
) -> Letter | list[Letter]:
    """A, B, Tie, Abstain or error. The first form that occurs counts, at its last place:

    A>>B .. B>>A; "Output (a)"; a line "Final: A"; [[A]]; the first JSON object's winner. Of a
    reply that was cut (`finish_reason="length"`) only the last 500 characters count, JSON not.
    """
    is_cut = finish_reason == "length"
    found: Letter | list[Letter] = read_each("texts", texts, lambda text: _verdict(text, is_cut))
    return found


def _verdict(text: str, is_cut: bool) -> Letter:
    seen = text[-TAIL:] if is_cut else text
    for form in (_LABEL, _OUTPUT, _FINAL, _BRACKET):
        found = form.findall(seen)
        if found:
            return _letter(found[-1])
    return "error" if is_cut else _from_object(text)


def parse_pairwise_verdict_truncated(text: str, finish_reason: str | None = "length") -> Letter:
    """The verdict of one reply that may have been cut."""
    return _verdict("" if text is None else as_text("text", text), finish_reason == "length")


@overload
def parse_rating(texts: str, lo: int = 1, hi: int = 10) -> int | None: ...
@overload
def parse_rating(texts: Texts, lo: int = 1, hi: int = 10) -> list[int | None]: ...
def parse_rating(texts: str | Texts, lo: int = 1, hi: int = 10) -> int | list[int | None] | None:
    """The whole number that a reply ends with, `8`, `8.`, `8/10` or `8 out of 10`; else None.

    None also where it is out of range, or where the scale named is another one.
    """
    lo = as_whole("lo", lo)
    hi = as_whole("hi", hi, low=lo)
    found: int | list[int | None] | None = read_each("texts", texts, lambda t: _rating(t, lo, hi))
    return found


def _rating(text: str, lo: int, hi: int) -> int | None:
    end = text.strip().strip("*`_[]()\"' \n\t").removesuffix(".").rstrip("*`_[]()\"' \n\t")
    found = _RATING.search(end)
    if found is None or (found[2] is not None and int(found[2]) != hi):
        return None
    rating = int(found[1])
    return rating if lo <= rating <= hi else None


def _letter(label: str) -> Letter:
    compact = "".join(label.upper().split())
    known: dict[str, Letter] = {"A=B": "Tie", "A==B": "Tie", "TIE": "Tie", "ABSTAIN": "Abstain"}
    if compact in known:
        return known[compact]
    return "A" if compact.startswith("A") else "B"


def _from_object(text: str) -> Letter:
    found = first_object(text)
    for name in _FIELDS:
        value = found.get(name)
        if not isinstance(value, str):
            continue
        said = " ".join(value.lower().split())
        if said in _TIES:
            return "Tie"
        if said in _ABSTENTIONS:
            return "Abstain"
        named = _NAMED.fullmatch(said)
        if named:
            return "A" if named[1] == "a" else "B"
    return "error"
