"""From a judge's words to a verdict, and from verdicts to a score: deterministic, no model.

    parse_pairwise_verdict("Both are fine. [[B]]")       # 'B'; 'error' is invalid, not a tie
    parse_rating("I would say 8/10.", lo=1, hi=10)       # 8; None where there is none
    score_from_counts((3, 4))                            # 0.75

A function whose argument is a plural takes one item and gives one result, or a list and gives a
list. The read-outs of Skill-RM (arXiv 2606.03980); where we differ: a rating out of range is None
and never another number, and an unreadable verdict stays `error`.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from burnish.arguments import as_list, as_number, as_text, as_whole, read_each, refused
from burnish.numbers import plain
from burnish.rewards.checks.texts import spaced
from burnish.rewards.judges.verdicts import first_object

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


def ranking_score(winner_vs_chosen: Any, chosen: str | None = None) -> Any:
    """Best of four: 1 where the winner is the chosen one, 0 where it is not, 0.25 if unparsed.

    Takes (winner, chosen), a list of such pairs, or the two as arguments.
    """
    if chosen is not None:
        return _ranked(winner_vs_chosen, chosen)
    given = as_list("winner_vs_chosen", winner_vs_chosen)
    if _is_pair(given):
        return _ranked(*given)
    return [_ranked(*_two("winner_vs_chosen", pair)) for pair in given]


def score_from_counts(pairs: Any, total: float | None = None) -> Any:
    """Share of constraints met, in [0, 1]; 1 where there is none, None for a missing or negative
    count. Takes (satisfied, total), a list of such pairs, or the two as arguments."""
    pairs, total = plain(pairs), plain(total)
    if total is not None or pairs is None or isinstance(pairs, int | float):
        return _share(pairs, total)
    given = as_list("pairs", pairs)
    if _is_pair(given):
        return _share(*given)
    return [_share(*_two("pairs", pair)) for pair in given]


def clamp(values: Any, default: float = 0.5) -> Any:
    """Into [0, 1]; the default for what is no number, NaN included. A list or array gives a list."""
    values = plain(values)
    default = as_number("default", default)
    if isinstance(values, list | tuple):
        return [clamp(value, default) for value in values]
    try:
        number = float(values)
    except (TypeError, ValueError, OverflowError):
        return default
    return default if math.isnan(number) else min(1.0, max(0.0, number))


def reference_match(cases: Any, responses: Any = None) -> Any:
    """The one response that holds the reference as whole tokens, or "inconclusive".

    A case is (reference, responses) or a mapping with these two; responses are a list, labelled
    A, B, ..., Z, AA, AB, ..., or a mapping from labels to texts. Case and punctuation at the ends do
    not count; 4 is neither in 14 nor in 4.5 nor in -4. Chinese and Japanese letters are a token each.
    """
    if responses is not None:
        return _matched(cases, responses)
    if isinstance(cases, Mapping):
        return _matched(cases.get("reference", cases.get("ref")), cases.get("responses"))
    if isinstance(cases, tuple) or (
        isinstance(cases, list) and len(cases) == 2 and isinstance(cases[0], str)
    ):
        return _matched(*_two("cases", cases))
    return [reference_match(case) for case in as_list("cases", cases)]


def stable_int(parts: Any, *more: Any) -> int:
    """An integer of 64 bits from the parts' texts, the same everywhere (SHA-256)."""
    single = isinstance(parts, str) or not isinstance(parts, Sequence)
    joined = "\x1f".join(map(str, (parts, *more) if single or more else parts))
    return int(hashlib.sha256(joined.encode()).hexdigest()[:16], 16)


def candidate_order(seed: Any, dataset: Any, sample_id: Any, n: int) -> list[int]:
    """0 .. n-1 in a seeded order that depends on nothing but the arguments."""
    order = list(range(as_whole("n", n, low=0)))
    rng = random.Random(stable_int(seed, dataset, sample_id, "candidate_order"))
    rng.shuffle(order)
    return order


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


def _is_pair(value: Any) -> bool:
    """Two bare items, not a list of two pairs."""
    return len(value) == 2 and not isinstance(value[0], list | tuple)


def _two(what: str, pair: Any) -> tuple[Any, Any]:
    values = as_list(what, pair)
    if len(values) != 2:
        raise refused(what, pair, "two values")
    return values[0], values[1]


def _ranked(winner: Any, chosen: Any) -> float:
    as_text("chosen", chosen)
    if winner == chosen:
        return 1.0
    return 0.0 if isinstance(winner, str) and re.fullmatch("[A-D]", winner) else 0.25


def _share(satisfied: Any, total: Any) -> float | None:
    met, of = _count(satisfied), _count(total)
    if met is None or of is None:
        return None
    return 1.0 if not of else min(1.0, met / of)


def _count(value: Any) -> float | None:
    """A count of at least 0, also as text; one that is partly met may be a half."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf else None


def _matched(reference: Any, responses: Any) -> str:
    wanted = _ends_bare(_plain_text(reference))
    if not isinstance(responses, Mapping):
        texts = as_list("responses", responses)
        responses = {_label(place): text for place, text in enumerate(texts)}
    if not wanted:
        return "inconclusive"
    # Neither inside a word, nor inside a number: no digit, sign, point or comma grown on to it.
    sign = r"(?<![-−+])" if wanted[0].isdigit() else ""
    pattern = re.compile(rf"(?<!\w)(?<!\d[.,]){sign}{re.escape(wanted)}(?!\w)(?![.,]\d)")
    hits = [label for label, text in responses.items() if pattern.search(_plain_text(text))]
    return str(hits[0]) if len(hits) == 1 else "inconclusive"


def _ends_bare(text: str) -> str:
    """Without punctuation at its ends; a sign or a point before a digit and a % belong to it."""
    start = re.sub(r"^(?![-−+.]?\d)[^\w]+(?=[-−+.]?\w)", "", text)
    return re.sub(r"[^\w%]+$", "", start)


def _plain_text(value: Any) -> str:
    """Small letters with single blanks; nothing for None and NaN, which are no texts."""
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if is_missing else " ".join(spaced(str(value).casefold()).split())


def _label(place: int) -> str:
    """A, B, ..., Z, AA, AB, ...: the columns of a table."""
    letters = ""
    place += 1
    while place:
        place, letter = divmod(place - 1, 26)
        letters = chr(65 + letter) + letters
    return letters
