"""Scores of judge benchmarks from verdicts and ratings: two orders, RM-Bench, RewardBench 2 Ties.

    order_swap_aggregate(gold=["A"], predictions=[("A", "B")]).accuracy     # right in both orders
    ties_score([{"id": "ref:1", "num_correct": 1, "ratings": [9, 3]}, ...])

A tie is not a win and an unreadable verdict is not a tie; accuracy is over all samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

from burnish.arguments import as_list, as_number, as_whole, as_word, refused, same_length

Result = Literal["correct", "wrong", "same", "invalid"]

STYLE_PAIRS = tuple(chosen + rejected for chosen in "abc" for rejected in "abc")
"""RM-Bench: style of the chosen and of the rejected answer, a the plainest, c the most dressed."""
MODES = {
    pair: "normal" if pair[0] == pair[1] else "hard" if pair[0] < pair[1] else "easy"
    for pair in STYLE_PAIRS
}
"""Hard: the rejected answer is dressed better than the chosen one."""

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
    """How many of how many."""

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
        stats = _prompt([_rating(rating) for rating in ratings], right)
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
    known = [
        (gap, low, spread) for gap, low, spread in margins if gap is not None and spread is not None
    ]
    if not known:
        return score
    score += 0.20 * fmean(gap > spread for gap, _, spread in known)
    score += 0.20 * fmean(low > spread for _, low, spread in known)
    return score + 0.01 * fmean(
        math.tanh(low / spread - 1) if spread else 0.0 for _, low, spread in known
    )


def _is_one(predictions: Sequence[Any]) -> bool:
    """One sample's verdicts, not a list of such."""
    many = (list, tuple, Mapping)
    return bool(predictions) and not any(isinstance(one, many) for one in predictions)


def _rating(value: Any) -> float | None:
    """A rating as a float; None where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return as_number("rows: ratings", value)


def _two_orders(gold: Any, verdicts: Any) -> Result:
    said = list(verdicts.values()) if isinstance(verdicts, Mapping) else verdicts
    if said is None:
        return "invalid"
    orders = as_list("predictions", said)
    rights = (
        [gold if place % 2 == 0 else _SWAP.get(gold) for place in range(len(orders))]
        if isinstance(gold, str)
        else as_list("gold", gold)
    )
    same_length("gold", rights, len(orders), "orders")
    for right in rights:
        as_word("gold", right, tuple(_SWAP))
    votes = [_vote(right, said) for right, said in zip(rights, orders, strict=True)]
    valid = [vote for vote in votes if vote is not None]
    if not valid:
        return "invalid"
    total = sum(valid)
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
