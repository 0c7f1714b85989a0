"""Verdicts on single criteria become one score, outside of the language model (OpenRS).

A decided critical flaw silences everything else; without one the score is the mean of the decided
criteria, weighted by their type. Paper: Open Rubric System (arXiv 2602.14069). Where we differ from
the reference code: what cannot be read is None and not 0 (`parity=True` gives the 0), and a winner
that contradicts the sign of its score is counted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from burnish.arguments import as_word
from burnish.boundary import NonNegative, public
from burnish.numbers import plain

logger = logging.getLogger(__name__)

TYPES = ("critical", "core", "important", "highlight")
ALIASES = dict(zip((*TYPES, "硬伤", "核心", "重要", "亮点"), TYPES * 2, strict=True))
WEIGHTS = {"core": 5.0, "important": 2.0, "highlight": 1.0}
LARGEST = 2.0
"""A criterion's score is from -2 to 2; what is beyond it keeps to another scale."""
EPSILON = 1e-6
"""In the denominator of the weighted mean, as in the reference code: |mean| stays below 2."""

_LETTERS = {"A": 1, "B": -1, "S": 0, "SAME": 0, "TIE": 0, "EQUAL": 0}


class InvalidCriterion(ValueError):
    """A criterion without a readable winner or score; the message says which and why."""


class Compared(NamedTuple):
    """One criterion of a pair, read: who is better on it, and by how much."""

    type: str
    """One of the four types; any other word as it came."""
    sign: int
    """1: A is better, -1: B is, 0: neither."""
    score: float
    """As it was given; its size counts, `sign` says which way."""

    @property
    def signed(self) -> float:
        return self.sign * abs(self.score)


@dataclass(frozen=True)
class Aggregate:
    """A score and how it came about."""

    value: float | None
    decided_by: Literal["critical", "weighted", "nothing", "invalid"]
    inconsistent: int = 0
    """Criteria whose letter contradicts their score; the letter won."""
    unknown_types: tuple[str, ...] = ()
    reason: str = ""
    """Why there is no value."""


@public
def aggregate_criteria(
    criteria: object,
    min_score: NonNegative = 0.0,
    *,
    weights: Mapping[str, NonNegative] | None = None,
    strict: bool = False,
    fallthrough: bool = False,
    parity: bool = False,
) -> Any:
    """The score of A against B from criterion verdicts: above 0 where A is better.

    `criteria`: tables with `type`, `winner` (A, B or S; `chosen` as in the reference code) and
    `score` from -2 to 2; a list of such lists gives a list of scores. None where a criterion cannot
    be read or its score is out of range.

    `min_score`: smaller scores become 0. `weights` by type, for replays. `strict`: a critical
    criterion with winner S is undecided, whatever its score. `fallthrough`: critical flaws that
    cancel out leave the decision to the rest. `parity`: the reference code to the letter, where
    what cannot be read is 0, scores have no bounds and are cut to whole numbers, and a tied criterion
    with a score dilutes the mean.
    """
    value_of = partial(
        explain_criteria.plain,
        min_score=min_score,
        weights=weights,
        strict=strict,
        fallthrough=fallthrough,
        parity=parity,
    )
    if isinstance(criteria, list | tuple) and criteria and isinstance(criteria[0], list | tuple):
        return [value_of(one).value for one in criteria]
    return value_of(criteria).value


@public
def explain_criteria(
    criteria: object,
    min_score: NonNegative = 0.0,
    *,
    weights: Mapping[str, NonNegative] | None = None,
    strict: bool = False,
    fallthrough: bool = False,
    parity: bool = False,
) -> Aggregate:
    """`aggregate_criteria` for one pair, with what decided and what was odd."""
    known = {type_of(word): weight for word, weight in (weights or {}).items()}
    table = WEIGHTS | {as_word("weights", word, WEIGHTS): known[word] for word in known}
    listed = criteria.get("rubric_compares") if isinstance(criteria, Mapping) else criteria
    try:
        if not isinstance(listed, list | tuple):
            raise InvalidCriterion(f"expected a list of criteria, got {type(listed).__name__}")
        bound = math.inf if parity else LARGEST
        read = [read_criterion(item, place, bound) for place, item in enumerate(listed)]
    except InvalidCriterion as error:
        return Aggregate(0.0 if parity else None, "invalid", reason=str(error))
    if parity:
        read = [c._replace(score=float(math.trunc(c.score))) for c in read]
    unknown = tuple(dict.fromkeys(c.type for c in read if c.type not in TYPES))
    if unknown:
        logger.warning("criteria of unknown type are left out: %s", ", ".join(unknown))
    # The letter and the sign of the score name different winners.
    inconsistent = sum(c.score != 0 and c.sign != math.copysign(1, c.score) for c in read)

    flaws = [c for c in read if c.type == "critical" and (c.signed if strict else c.score) != 0]
    total = math.fsum(c.signed for c in flaws)
    by: Literal["critical", "weighted", "nothing"]
    if flaws and not (fallthrough and total == 0):
        by, value = "critical", total
    else:
        rest = [c for c in read if c.type in table and (c.score if parity else c.signed) != 0]
        weight = math.fsum(table[c.type] for c in rest)
        score = math.fsum(table[c.type] * c.signed for c in rest)
        by, value = ("weighted", score / (weight + EPSILON)) if weight > 0 else ("nothing", 0.0)
    if abs(value) < min_score:
        value = 0.0
    return Aggregate(value + 0.0, by, inconsistent, unknown)


def read_criterion(item: Any, place: int = 0, largest: float = LARGEST) -> Compared:
    """One criterion from its table; `InvalidCriterion` says what is missing."""
    found = item if isinstance(item, Mapping) else {}
    letter = found.get("winner", found.get("chosen"))
    sign = _LETTERS.get(letter.strip().upper()) if isinstance(letter, str) else None
    if sign is None:
        raise InvalidCriterion(
            f"criterion {place + 1}: expected winner A, B or S, got {letter!r:.40}"
        )
    score = number_in(found.get("score"))
    if score is None or abs(score) > largest:
        told = f"expected a score from -2 to 2, got {found.get('score')!r:.40}"
        raise InvalidCriterion(f"criterion {place + 1}: {told}")
    return Compared(type_of(found.get("type")), sign, score)


def type_of(word: Any) -> str:
    """The type that a word names, in English or Chinese; `important` where there is none."""
    text = str(word).strip() if word is not None else ""
    return ALIASES.get(text.lower(), text) or "important"


def number_in(value: Any) -> float | None:
    """A finite number, also as text or as a 0-d array; None for anything else."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
