"""Scores become outcomes: two orders, one response against several, the verifiable stage (OpenRS).

    two_order_votes((1.4, -0.5))        # "good": both orders prefer the chosen response
    one_vs_n([1, 0, 1])                 # "Tie"

A two-order rule that is antisymmetric stands beside the published one. A score that is missing is
`error`, never an outcome.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from burnish.arguments import as_list, as_number, as_word, refused
from burnish.rewards.judges.openrs.aggregate import number_in

_NEITHER = frozenset({"TIE", "S", "SAME", "EQUAL", "A=B", "DRAW", "ABSTAIN"})
TwoOrderRule = Literal["reference", "votes"]


def two_order_verdict(
    forward_backward: Any, min_score: float = 0.0, rule: TwoOrderRule = "reference"
) -> Any:
    """`good`, `bad`, `same` or `error` from the scores in both orders.

    `forward_backward` is (f, b), or a list of such pairs: f with the chosen response as A, b with
    the rejected one as A. `reference`: good where f > m and b <= -m, bad where f <= -m and b > m,
    as published; it is not antisymmetric at 0. `votes`: see `two_order_votes`. A missing score in
    either order is `error`.
    """
    as_word("rule", rule, get_args(TwoOrderRule))
    min_score = as_number("min_score", min_score, low=0)
    what = "forward_backward"
    if _is_many(forward_backward, what):
        return [two_order_verdict(pair, min_score, rule) for pair in forward_backward]
    forward, backward = (number_in(score) for score in _two(forward_backward, what))
    if forward is None or backward is None:
        return "error"
    if rule == "votes":
        lead = _vote(forward, min_score) - _vote(backward, min_score)
        return "good" if lead > 0 else "bad" if lead < 0 else "same"
    if forward > min_score and backward <= -min_score:
        return "good"
    return "bad" if forward <= -min_score and backward > min_score else "same"


def two_order_votes(
    forward_backward: Any, min_score: float = 0.0, rule: TwoOrderRule = "votes"
) -> Any:
    """The recommended rule: each order has one vote, and exchanging the responses exchanges
    `good` and `bad`. Arguments as in `two_order_verdict`."""
    return two_order_verdict(forward_backward, min_score, rule)


def two_order_strict(winners: Any) -> Any:
    """`win` or `lose` only where both orders name the same response, else `tie`.

    `winners` is one pair of verdicts, or a list of them, each in the letters that its order showed:
    the chosen response is A in the first and B in the second; a tie or an abstention names neither.
    A verdict that is none in either order (None, or the `error` of a parser) is `error`.
    """
    if _is_many(winners, "winners"):
        return [two_order_strict(pair) for pair in winners]
    first, second = (_winner(said) for said in _two(winners, "winners"))
    if first is None or second is None:
        return "error"
    return {"AB": "win", "BA": "lose"}.get(first + second, "tie")


def one_vs_n(results: Any) -> Any:
    """One response against several: any -1 is `Loss`, all 1 is `Win`, anything else `Tie`.

    `results` are 1, 0 and -1, one an opponent; a list of such lists gives a list. None is a
    comparison that failed: `error`, unless another one is lost anyway.
    """
    if _is_many(results, "results"):
        return [one_vs_n(row) for row in results]
    numbers = [number_in(result) for result in as_list("results", results, least=1)]
    for number in numbers:
        if number not in (-1, 0, 1, None):
            raise refused("results", number, "1, 0 or -1 for each opponent, None where it failed")
    if any(number == -1 for number in numbers):
        return "Loss"
    if None in numbers:
        return "error"
    return "Win" if all(number == 1 for number in numbers) else "Tie"


def verifiable_verdict(scores_chosen_rejected: Any) -> Any:
    """`chosen_better` or `rejected_better` by the higher score; `equal`: the judge goes on.

    One pair of scores or a list of them; `error` where either is missing.
    """
    what = "scores_chosen_rejected"
    if _is_many(scores_chosen_rejected, what):
        return [verifiable_verdict(pair) for pair in scores_chosen_rejected]
    chosen, rejected = (number_in(score) for score in _two(scores_chosen_rejected, what))
    if chosen is None or rejected is None:
        return "error"
    if chosen == rejected:
        return "equal"
    return "chosen_better" if chosen > rejected else "rejected_better"


def _vote(score: float, min_score: float) -> int:
    return 0 if abs(score) <= min_score else (1 if score > 0 else -1)


def _winner(said: Any) -> str | None:
    """A, B, or TIE for every word that names neither; None for what is no verdict."""
    word = said.strip().upper() if isinstance(said, str) else ""
    return word if word in ("A", "B") else "TIE" if word in _NEITHER else None


def _is_many(value: Any, what: str) -> bool:
    """True for a list of pairs, a table of several rows included."""
    axes = getattr(value, "ndim", None)
    if isinstance(axes, int):
        return axes > 1
    first = next(iter(as_list(what, value)), None)
    return hasattr(first, "__len__") and not isinstance(first, str)


def _two(pair: Any, what: str) -> tuple[Any, Any]:
    values = as_list(what, pair)
    if len(values) != 2:
        raise refused(what, pair, "two values, one an order or a response")
    return values[0], values[1]
