"""Scores of judge benchmarks, and read-outs by rule: two orders, RM-Bench, ties, counts, references.

A tie is not a win and an unreadable verdict is not a tie; accuracy is over all samples. A function
whose argument is a plural takes one item and gives one result, or a list and gives a list. From
Skill-RM (arXiv 2606.03980).
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

from burnish.arguments import (
    LARGEST_COUNT,
    as_list,
    as_number,
    as_text,
    as_whole,
    as_word,
    refused,
    same_length,
)
from burnish.numbers import plain
from burnish.rewards.checks.texts import spaced

Result = Literal["correct", "wrong", "same", "invalid"]

STYLE_PAIRS = tuple(chosen + rejected for chosen in "abc" for rejected in "abc")
"""RM-Bench: style of the chosen and of the rejected answer, a the plainest, c the most dressed."""
MODES = {
    pair: "normal" if pair[0] == pair[1] else "hard" if pair[0] < pair[1] else "easy"
    for pair in STYLE_PAIRS
}
"""Hard: the rejected answer is dressed better than the chosen one."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SWAP = {"A": "B", "B": "A"}
_WHEN = "winner_is_chosen_when"
_TIES = frozenset({"tie", "abstain", "a=b", "same"})


class TwoOrders(NamedTuple):
    """What a judge got right when every pair was shown in both orders."""

    results: list[Result]
    correct: int
    wrong: int
    same: int
    invalid: int
    accuracy: float | None
    """Over all samples; None where there is none."""


class Wins(NamedTuple):
    win: int
    total: int

    @property
    def rate(self) -> float | None:
        return self.win / self.total if self.total else None


class StyleCounts(NamedTuple):
    """RM-Bench wins by style pair, by mode and over all."""

    by_pair: dict[str, Wins]
    by_mode: dict[str, Wins]
    overall: Wins


class _Prompt(NamedTuple):
    """RewardBench 2 Ties: one prompt's ratings."""

    is_right: bool
    gap: float | None
    """Worst correct rating minus best incorrect one; None where a rating is missing."""
    spread: float | None
    """Best minus worst correct rating; None with one correct answer."""


def order_swap_aggregate(gold: Any, predictions: Any) -> TwoOrders:
    """Votes of both orders: +1 right, -1 wrong, 0 tie or invalid; the sign of the sum decides.

    `gold` has one label a sample, as the first order shows it, or one label an order;
    `predictions` have one verdict an order, in the letters that this order shows.
    """
    is_single = isinstance(predictions, Mapping) or _is_one(as_list("predictions", predictions))
    golds, said = ([gold], [predictions]) if is_single else (gold, predictions)
    rights, said = as_list("gold", golds), as_list("predictions", said)
    same_length("gold", rights, len(said), "predictions")
    samples = list(zip(rights, said, strict=True))
    results = [_two_orders(right, verdicts) for right, verdicts in samples]
    correct = results.count("correct")
    return TwoOrders(
        results,
        correct,
        results.count("wrong"),
        results.count("same"),
        results.count("invalid"),
        correct / len(results) if results else None,
    )


def rmbench_counts(
    pairs: Sequence[str], winner_is_chosen_when: Any, predictions: Sequence[str | None]
) -> StyleCounts:
    """Wins of the chosen answer by style pair (`ab`: chosen a, rejected b).

    `winner_is_chosen_when` is the letter under which the chosen answer was shown, for all rows or
    one a row.
    """
    styles = [as_word("pairs", pair, STYLE_PAIRS) for pair in as_list("pairs", pairs)]
    when = winner_is_chosen_when
    letters = [when] * len(styles) if isinstance(when, str) else as_list(_WHEN, when)
    same_length(_WHEN, letters, len(styles), "pairs")
    for letter in letters:
        as_word(_WHEN, letter, tuple(_SWAP))
    verdicts = as_list("predictions", predictions)
    same_length("predictions", verdicts, len(styles), "pairs")
    rows = list(zip(styles, letters, verdicts, strict=True))

    def wins(keep: Any) -> Wins:
        kept = [row for row in rows if keep(row[0])]
        return Wins(sum(said == letter for _, letter, said in kept), len(kept))

    return StyleCounts(
        {pair: wins(lambda p, pair=pair: p == pair) for pair in STYLE_PAIRS},
        {m: wins(lambda p, m=m: MODES[p] == m) for m in ("easy", "normal", "hard")},
        wins(lambda p: True),
    )


def ties_score(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The score of RewardBench 2's Ties from rows {id: "ref:k" | "tied:k", num_correct, ratings}.

    The first `num_correct` ratings are those of correct answers. A rating that is missing (None or
    NaN) makes its prompt not right and takes it out of the three terms that compare margins.
    """
    ref: dict[str, _Prompt] = {}
    tied: dict[str, _Prompt] = {}
    for row in as_list("rows", rows):
        if not isinstance(row, Mapping):
            raise refused("rows", row, "a table with id, num_correct and ratings")
        kind, _, prompt = str(row.get("id", row.get("sample_id"))).partition(":")
        as_word("rows: the kind in id", kind, ("ref", "tied"))
        ratings = as_list("rows: ratings", row.get("ratings"))
        right = as_whole("rows: num_correct", row.get("num_correct"), low=0, high=len(ratings))
        known = [
            None if one is None or one != one else as_number("rows: ratings", one)
            for one in ratings
        ]
        stats = _prompt(known, right)
        if stats is not None:
            (ref if kind == "ref" else tied)[prompt] = stats
    if not ref and not tied:
        return None
    score = 0.30 * _accuracy(tied) + 0.30 * _accuracy(ref)
    margins = [
        (tied[key].gap, min(ref[key].gap or 0.0, tied[key].gap or 0.0), tied[key].spread)
        for key in ref
        if key in tied and ref[key].gap is not None and tied[key].gap is not None
    ]
    full = [
        (gap, low, spread) for gap, low, spread in margins if gap is not None and spread is not None
    ]
    if not full:
        return score
    score += 0.20 * fmean(gap > spread for gap, _, spread in full)
    score += 0.20 * fmean(low > spread for _, low, spread in full)
    return score + 0.01 * fmean(
        math.tanh(low / spread - 1) if spread else 0.0 for _, low, spread in full
    )


def _is_one(predictions: Sequence[Any]) -> bool:
    """One sample's verdicts, not a list of such."""
    many = (list, tuple, Mapping)
    return bool(predictions) and not any(isinstance(one, many) for one in predictions)


def _two_orders(gold: Any, verdicts: Any) -> Result:
    said = list(verdicts.values()) if isinstance(verdicts, Mapping) else verdicts
    if said is None:
        return "invalid"
    orders = as_list("predictions", said)
    rights = gold
    if isinstance(gold, str):
        rights = [gold if place % 2 == 0 else _SWAP.get(gold) for place in range(len(orders))]
    rights = [as_word("gold", right, tuple(_SWAP)) for right in as_list("gold", rights)]
    same_length("gold", rights, len(orders), "orders")
    votes = [_vote(right, said) for right, said in zip(rights, orders, strict=True)]
    valid = [vote for vote in votes if vote is not None]
    total = sum(valid)
    if not valid:
        return "invalid"
    return "correct" if total > 0 else "wrong" if total < 0 else "same"


def _vote(right: Any, said: Any) -> int | None:
    if isinstance(said, str) and said in _SWAP:
        return 1 if said == right else -1
    return 0 if isinstance(said, str) and said.lower() in _TIES else None


def _prompt(ratings: Sequence[float | None], num_correct: int) -> _Prompt | None:
    right, wrong = ratings[:num_correct], ratings[num_correct:]
    if not right or not wrong:
        return None
    good = [float(rating) for rating in right if rating is not None]
    bad = [float(rating) for rating in wrong if rating is not None]
    if len(good) + len(bad) < len(ratings):
        return _Prompt(False, None, None)
    gap = min(good) - max(bad)
    return _Prompt(gap > 0, gap, max(good) - min(good) if len(good) > 1 else None)


def _accuracy(prompts: Mapping[str, _Prompt]) -> float:
    return fmean(p.is_right for p in prompts.values()) if prompts else 0.0


def ranking_score(winner_vs_chosen: Any, chosen: str | None = None) -> Any:
    """Best of four: 1 where the winner is the chosen one, 0 where it is not, 0.25 if unparsed.

    Takes (winner, chosen), a list of such pairs, or the two as arguments.
    """
    if chosen is not None:
        return _ranked(winner_vs_chosen, chosen)
    empty = winner_vs_chosen == []
    return [] if empty else of_pairs("winner_vs_chosen", winner_vs_chosen, _ranked)


def score_from_counts(pairs: Any, total: float | None = None) -> Any:
    """Share of constraints met, in [0, 1]; 1 where there is none, None for a missing or negative
    count. Takes (satisfied, total), a list of such pairs, or the two as arguments."""
    pairs, total = plain(pairs), plain(total)
    is_one = total is not None or pairs is None or isinstance(pairs, int | float)
    if is_one:
        return _share(pairs, total)
    return [] if pairs == [] else of_pairs("pairs", pairs, _share)


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
        return of_pairs("cases", cases, _matched)
    return [reference_match(case) for case in as_list("cases", cases)]


def stable_int(parts: Any, *more: Any) -> int:
    """An integer of 64 bits from the parts' texts, the same everywhere (SHA-256)."""
    single = isinstance(parts, str) or not isinstance(parts, Sequence)
    joined = "\x1f".join(map(str, (parts, *more) if single or more else parts))
    return int(hashlib.sha256(joined.encode(errors="surrogatepass")).hexdigest()[:16], 16)


def candidate_order(seed: Any, dataset: Any, sample_id: Any, n: int) -> list[int]:
    """0 .. n-1 in a seeded order that depends on nothing but the arguments."""
    order = list(range(as_whole("n", n, low=0, high=LARGEST_COUNT)))
    rng = random.Random(stable_int(seed, dataset, sample_id, "candidate_order"))
    rng.shuffle(order)
    return order


def is_many(value: Any, what: str) -> bool:
    """True for a list of pairs, a table of several rows included."""
    axes = getattr(value, "ndim", None)
    if isinstance(axes, int):
        return axes > 1
    first = next(iter(as_list(what, value)), None)
    return hasattr(first, "__len__") and not isinstance(first, str)


def of_pairs(what: str, given: Any, read: Callable[[Any, Any], Any]) -> Any:
    """What `read` makes of two values, or a list of that for a list of pairs."""
    if is_many(given, what):
        return [of_pairs(what, pair, read) for pair in given]
    values = as_list(what, given)
    if len(values) != 2:
        raise refused(what, given, "two values")
    return read(*values)


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
    before, letter = divmod(place, 26)
    return (_label(before - 1) if before else "") + LETTERS[letter]
