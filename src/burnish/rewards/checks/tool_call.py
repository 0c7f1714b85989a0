"""Are the tool calls right? Three rewards of one answer, and the parts of them as checks.

    tool_call_rewards(output, gold)     # {"correctness": 3.0, "format": 1.0, "length": 0.21}

The rewards of ToolRL (arXiv 2504.13958) that GDPO and GD2PO are trained with. Correctness is the
overlap of the names plus, for each wanted call, the overlap of its keys and the count of its equal
values in the best unused call of that name, as a share of the most that could be had, mapped to
[-3, 3]; an unreadable answer is -3, and where no call is wanted it is 0.

Where we differ: blanks between blocks do not break the format, a tag that is only named in the
think block is no block, and true is not 1. A reference may accept several values of an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

from burnish.arguments import as_text, as_word
from burnish.errors import UserError
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck
from burnish.rewards.checks.call_text import (
    Call,
    Dialect,
    Gold,
    Unreadable,
    block,
    is_formed,
    read_calls,
    read_gold,
    same,
)
from burnish.rewards.checks.extract import short

Part = Literal["format", "name", "arguments", "correctness", "exact", "length"]

BEST = 3.0
"""Correctness lies between -BEST and BEST."""
LONG_THOUGHT = 512
"""Words in the think block that earn the whole length reward."""


class ToolCallConfig(CheckConfig, frozen=True, tag="tool_call"):
    """One aspect of the tool calls; values in [0, 1], of `correctness` in [-3, 3].

    `exact`: all calls are right and none is too many, in any order. `name`: overlap of the called
    names. `arguments`: share of keys and values that are right. `format`: nothing but the wanted
    blocks (or readable JSON). `length`: words of the think block / 512. `correctness`: see
    `tool_call_rewards`.
    """

    part: Part = "exact"
    field: str = "answer"
    """The task's field with the reference: block text, JSON text, a call or a list of calls."""
    dialect: Dialect = "blocks"

    @property
    def title(self) -> str:
        """Several parts are usual in one recipe, so each has its own name."""
        return self.name or f"tool_call_{self.part}"


class ToolCall(RuleCheck[ToolCallConfig]):
    """Compares the calls of a response with the task's reference."""

    uses_answer = True

    def __init__(self, config: ToolCallConfig) -> None:
        super().__init__(config)
        self.needs = frozenset({config.field})

    def judge(self, task: Task, response: Response) -> Reward:
        reference = task.fields.get(self.config.field)
        if reference is None:
            return self.abstained(f"the field '{self.config.field}' is empty: nothing to compare")
        try:
            gold = read_gold(reference)
        except UserError as error:
            return self.abstained(str(error))
        judged = _judged(response.text, gold, self.config.dialect)
        wanted = ", ".join(call.name for call in gold.calls) or "no call"
        return self.decided(getattr(judged, self.config.part), f"{judged.saw}; wanted {wanted!r}")


class Judged(NamedTuple):
    """Every part of one answer, and what was read."""

    format: float
    name: float
    arguments: float
    correctness: float
    exact: float
    length: float
    saw: str


def tool_call_rewards(output: str, gold: Any, *, dialect: Dialect = "blocks") -> dict[str, float]:
    """Correctness in [-3, 3], format 0 or 1, and length in [0, 1] of one answer.

    `gold` is text in the same form as `output`, JSON text, a call or a list of calls (each a dict
    with `name` and `parameters` or `arguments`). No `output` raises; a `gold` that cannot be read
    raises `UserError`.
    """
    as_text("output", output)
    as_word("dialect", dialect, get_args(Dialect))
    judged = _judged(output, read_gold(gold), dialect)
    return {
        "correctness": judged.correctness,
        "format": judged.format,
        "length": judged.length,
    }


def _judged(text: str, gold: Gold, dialect: Dialect) -> Judged:
    length = _length(text)
    try:
        calls = read_calls(text, dialect)
    except Unreadable as problem:
        formed = float(dialect == "blocks" and is_formed(text, gold.blocks))
        worst = -BEST if gold.calls else 0.0
        saw = f"{problem} in {short(text)!r}"
        return Judged(formed, 0.0, 0.0, worst, 0.0, length, saw)
    formed = float(dialect == "json" or is_formed(text, gold.blocks))
    names = _overlap([call.name for call in gold.calls], [call.name for call in calls])
    earned, possible = _matched(gold.calls, calls)
    arguments = earned / possible if possible else float(not calls)
    correctness = BEST * (2 * (names + earned) / (1 + possible) - 1) if gold.calls else 0.0
    exact = float(names == 1.0 and earned == possible)
    saw = f"called {short(', '.join(call.name for call in calls) or 'nothing')!r}"
    return Judged(formed, names, arguments, correctness, exact, length, saw)


class Pairing(NamedTuple):
    """A wanted call held against one of the answer's."""

    points: float
    possible: float
    call: Call


def _matched(gold: list[Call], calls: list[Call]) -> tuple[float, float]:
    """Points of the wanted calls, each against its best unused namesake, and the most possible."""
    unused = list(calls)
    earned = possible = 0.0
    for wanted in gold:
        pairings = [_paired(wanted, call) for call in unused if call.name == wanted.name]
        best = max(pairings, key=lambda pairing: pairing.points, default=None)
        if best is None or best.points == 0:
            possible += 1 + len(wanted.arguments)
            continue
        earned += best.points
        possible += best.possible
        # By identity: equal calls are different calls.
        unused = [call for call in unused if call is not best.call]
    return earned, possible


def _paired(wanted: Call, call: Call) -> Pairing:
    right, got = _settled(wanted, call), call.arguments
    equal = sum(key in got and same(got[key], value) for key, value in right.items())
    return Pairing(_overlap(right, got) + equal, 1 + len(right), call)


def _settled(wanted: Call, call: Call) -> dict[str, Any]:
    """The wanted arguments; where several values are accepted, the one that the call has."""
    right = {
        key: value
        for key, value in wanted.arguments.items()
        if key in call.arguments or key not in wanted.optional
    }
    for key, values in wanted.accepted.items():
        if key in call.arguments and any(same(value, call.arguments[key]) for value in values):
            right[key] = call.arguments[key]
    return right


def _overlap(left: Iterable[str], right: Iterable[str]) -> float:
    """Jaccard of two multisets; 1 where both are empty."""
    # Lists, because a Counter takes the values of a dict for counts.
    ours, theirs = Counter(list(left)), Counter(list(right))
    union = (ours | theirs).total()
    return (ours & theirs).total() / union if union else 1.0


def _length(text: str) -> float:
    words = len((block(text, "think") or "").split())
    return min(1.0, round(words / LONG_THOUGHT, 2))
