"""Are the tool calls right? Three rewards of one answer, and the parts of them as checks.

The rewards of ToolRL (arXiv 2504.13958) that GDPO and GD2PO are trained with. Correctness is the
overlap of the names plus, for each wanted call, the overlap of its keys and the count of its equal
values in the best unused call of that name, as a share of the most that could be had, mapped to
[-3, 3]; an unreadable answer is -3, and where no call is wanted it is 0.

Two dialects of an answer. `blocks` is ToolRL's: a think block, then a tool_call block with one JSON
object a line and/or a response block. `json` is calls alone: one object, a list of them, or an
object a line; `[]` says that no tool is called.

Where we differ: blanks between blocks do not break the format, a tag that is only named in the
think block is no block, and true is not 1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from burnish.boundary import public
from burnish.errors import UserError
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck
from burnish.rewards.checks.extract import short
from burnish.rewards.checks.rules import not_json

Part = Literal["format", "name", "arguments", "correctness", "exact", "length"]

Dialect = Literal["blocks", "json"]
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
    """Which aspect of the calls is paid."""
    field: str = "answer"
    """The task's field with the reference: block text, JSON text, a call or a list of calls."""
    dialect: Dialect = "blocks"
    """`blocks`: think, tool_call and response blocks; `json`: calls alone."""

    @property
    def title(self) -> str:
        """Several parts are usual in one recipe, so each has its own name."""
        return self.name or f"tool_call_{self.part}"


class ToolCall(RuleCheck[ToolCallConfig]):
    """Compares the calls of a response with the task's reference."""

    uses_answer = True

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


@public
def tool_call_rewards(
    output: str, gold: object, *, dialect: Dialect = "blocks"
) -> dict[str, float]:
    """Correctness in [-3, 3], format 0 or 1, and length in [0, 1] of one answer.

    `gold` is text in the same form as `output`, JSON text, a call or a list of calls (each a dict
    with `name` and `parameters` or `arguments`). No `output` raises; a `gold` that cannot be read
    raises `UserError`.
    """
    judged = _judged(output, read_gold(gold), dialect)
    return {key: getattr(judged, key) for key in ("correctness", "format", "length")}


def _judged(text: str, gold: Gold, dialect: Dialect) -> Judged:
    thought = len((block(text, "think") or "").split())
    length = min(1.0, round(thought / LONG_THOUGHT, 2))
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


def _matched(gold: list[Call], calls: list[Call]) -> tuple[float, float]:
    """Points of the wanted calls, each against its best unused namesake, and the most possible."""
    unused = list(calls)
    earned = possible = 0.0
    for wanted in gold:
        pairings = [(*_paired(wanted, call), call) for call in unused if call.name == wanted.name]
        points, most, best = max(pairings, key=lambda one: one[0], default=(0.0, 0, None))
        if best is None or points == 0:
            possible += 1 + len(wanted.arguments)
            continue
        earned += points
        possible += most
        # By identity: equal calls are different calls.
        unused = [call for call in unused if call is not best]
    return earned, possible


def _paired(wanted: Call, call: Call) -> tuple[float, int]:
    """Points of a wanted call held against one of the answer's, and the most possible."""
    right, got = _settled(wanted, call), call.arguments
    equal = sum(key in got and same(got[key], value) for key, value in right.items())
    return _overlap(right, got) + equal, 1 + len(right)


def is_right(call: Call, wanted: Call) -> bool:
    """Whether a call is the wanted one: its name, and every argument by one of its accepted values."""
    return call.name == wanted.name and same(_settled(wanted, call), call.arguments)


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


# --- reading calls from a text
#
# A tag that is only named inside the think block ("no <response> yet") is text, not a block: 13 of
# ToolRL's 280 own training answers do that.


TAGS = ("think", "tool_call", "response")
DEEPEST = 64
"""Levels of nesting of an argument that are compared."""


class Call(NamedTuple):
    """One call. `accepted` (of references only) lists further right values of an argument;
    `optional` names arguments that may be left out."""

    name: str
    arguments: dict[str, Any]
    accepted: Mapping[str, list[Any]] = {}
    optional: frozenset[str] = frozenset()


class Gold(NamedTuple):
    """What is right: the calls, and the blocks that a response in the block dialect has."""

    calls: list[Call]
    blocks: tuple[str, ...]


class Unreadable(Exception):
    """A text that holds no calls; the message says what was seen."""


def read_calls(text: str, dialect: Dialect) -> list[Call]:
    """The calls of a model's answer; raises `Unreadable` where they cannot be parsed.

    An answer of the block dialect with a response and without a tool_call block has no calls.
    """
    if dialect == "json":
        return [_call(value) for value in _json_values(text)]
    after = _after_think(text)
    lines = block(text, "tool_call", after)
    if lines is not None:
        return [_call(value) for value in _line_values(lines)]
    if "<tool_call>" in text[after:] or not (block(text, "response", after) or "").strip():
        raise Unreadable("no tool_call block and no response")
    return []


def read_gold(gold: Any) -> Gold:
    """The reference from block text, JSON text, one call or a list of calls; else `UserError`.

    A call may have `accepted` (argument -> further right values) and `optional` (arguments that
    may be left out) beside its name and its arguments.
    """
    present = _blocks_in(gold) if isinstance(gold, str) else ()
    try:
        if present:
            text = block(gold, "tool_call", _after_think(gold))
            return Gold(
                [] if text is None else [_call(one, GivenReference) for one in _line_values(text)],
                present,
            )
        values = _json_values(gold) if isinstance(gold, str) else _listed(gold)
        calls = [_call(one, GivenReference) for one in values]
    except Unreadable as problem:
        raise UserError(
            f"tool calls: the reference (gold) {gold!r:.80} cannot be read ({problem}); expected "
            '<tool_call> or <response> blocks, or [{"name": ..., "arguments": {...}}].'
        ) from None
    return Gold(calls, ("think", "tool_call") if calls else ("think", "response"))


def block(text: str, tag: str, start: int = 0) -> str | None:
    """What stands in the first <tag>...</tag> from `start`; None where there is none."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    begin = text.find(opening, start)
    end = text.find(closing, begin + len(opening)) if begin >= 0 else -1
    return text[begin + len(opening) : end] if end >= 0 else None


def is_formed(text: str, wanted: tuple[str, ...]) -> bool:
    """Whether the text is the wanted blocks, each once and in order, with blanks between at most."""
    text = text.strip()
    after = _after_think(text)
    for tag in TAGS:
        # What the think block names is text; what it closes is a block.
        opened = text.count(f"<{tag}>", after) + (tag == "think" and after > 0)
        if not opened == text.count(f"</{tag}>") == (tag in wanted):
            return False
    for tag in wanted:
        if not text.startswith(f"<{tag}>"):
            return False
        text = text.partition(f"</{tag}>")[2].lstrip()
    return not text


def same(left: Any, right: Any) -> bool:
    """JSON equality: 1 is 1.0, but neither is true nor "1"."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _after_think(text: str) -> int:
    """Where the think block that opens a text ends; 0 where none opens it."""
    opens = text.lstrip().startswith("<think>")
    end = text.find("</think>") if opens else -1
    return end + len("</think>") if end >= 0 else 0


def _blocks_in(text: str) -> tuple[str, ...]:
    """Tags of the blocks of a reference; none where the text begins as JSON does."""
    if text.lstrip()[:1] in ("[", "{"):
        return ()
    after = _after_think(text)
    starts = {"think": 0, "tool_call": after, "response": after}
    return tuple(tag for tag in TAGS if block(text, tag, starts[tag]) is not None)


def _json_values(text: str) -> list[Any]:
    try:
        return _listed(_parsed(text))
    except Unreadable:
        if "\n" not in text.strip():
            raise
    return _line_values(text)


def _line_values(text: str) -> list[Any]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise Unreadable("nothing where calls should be")
    return [_parsed(line) for line in lines]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=not_json)
        level = [value]
        for _ in range(DEEPEST):
            level = [
                inner
                for one in level
                if isinstance(one, dict | list)
                for inner in (one.values() if isinstance(one, dict) else one)
            ]
        if level:
            raise ValueError("nested too deeply")
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON that can be read: {str(error)[:80]}") from None
    return value


class GivenCall(Struct):
    """A call as it is written; `parameters` goes before `arguments`."""

    name: str
    parameters: dict[str, Any] | UnsetType = UNSET
    arguments: Any = None


class GivenReference(GivenCall):
    """A wanted call as it is written."""

    accepted: dict[str, list[Any]] | None = None
    optional: list[str] | None = None


def _call(value: Any, kind: type[GivenCall] = GivenCall) -> Call:
    try:
        given = msgspec.convert(value, kind)
        arguments = given.arguments if given.parameters is UNSET else given.parameters
        call = Call(given.name, msgspec.convert(arguments, dict[str, Any]))
    except msgspec.ValidationError as error:
        raise Unreadable(f"a call is no object of a name and parameters ({error})") from None
    if isinstance(given, GivenReference):
        optional = frozenset(given.optional or ())
        call = call._replace(accepted=given.accepted or {}, optional=optional)
    return call
