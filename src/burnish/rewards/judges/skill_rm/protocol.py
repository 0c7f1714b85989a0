"""The judge's calls: one JSON object a reply, `{"tool": "...", "arguments": {...}}`.

    read_call('{"tool": "use_skill", "arguments": {"name": "code"}}')       # Call(...)
    read_call("I think A is better")                                       # Broken(...)

A reply that is not exactly one such object is `Broken`: the judge is told why and the step is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from burnish.rewards.judges.questions import Unreadable
from burnish.rewards.judges.skill_rm.entries import CAPS
from burnish.rewards.judges.skill_rm.readout import Count
from burnish.rewards.judges.verdicts import own_object

LONGEST = 100_000
"""Characters of a reply that are read."""
SIDES = {"a": 1, "b": -1, "tie": 0}


class Call(NamedTuple):
    """A tool and its arguments."""

    tool: str
    arguments: Mapping[str, Any]


class Broken(NamedTuple):
    """A reply that is no call, and why."""

    why: str


class Observation(NamedTuple):
    """One line of the judge's own package of evidence."""

    criterion: str
    observation: str
    side: int
    resource: str = ""


class PairAnswer(NamedTuple):
    """What `final_answer` says about two responses."""

    side: int
    rationale: str
    items: tuple[Observation, ...] = ()


class PointAnswer(NamedTuple):
    """What `final_answer` says about one response."""

    score: float | None
    rationale: str
    counts: tuple[Count, ...] = ()
    flags: tuple[str, ...] = ()


Answer = PairAnswer | PointAnswer


class NoAnswer(ValueError):
    """Arguments of `final_answer` that are no answer; the message says what was expected."""


def read_call(reply: str, shown: Sequence[str] = ()) -> Call | Broken:
    """The one call that a reply consists of; a final answer must not stand in the texts shown."""
    if len(reply) > LONGEST:
        return Broken(f"the reply has {len(reply)} characters; expected one short JSON object")
    try:
        table = own_object(reply)
        if table.get("tool") == "final_answer":
            own_object(reply, shown)
    except Unreadable as error:
        return Broken(str(error))
    extra = sorted(set(table) - {"tool", "arguments"})
    arguments = table.get("arguments", {})
    if extra:
        return Broken(f"unknown key {extra[0]!r:.60} beside tool and arguments")
    if not isinstance(table.get("tool"), str) or not isinstance(arguments, dict):
        return Broken('expected {"tool": a text, "arguments": an object}')
    return Call(table["tool"], arguments)


def read_pair_answer(arguments: Mapping[str, Any]) -> PairAnswer:
    """`verdict` A, B or Tie, with a rationale and a package of evidence."""
    _known(arguments, ("verdict", "rationale", "judgement_package"))
    side = _side(arguments.get("verdict"), "verdict")
    items = [_observation(row) for row in _rows(arguments, "judgement_package")]
    return PairAnswer(side, _text(arguments, "rationale"), tuple(items))


def read_point_answer(arguments: Mapping[str, Any]) -> PointAnswer:
    """`constraints` with satisfied or not, `flags` of severity, and a `score` from 0 to 1."""
    known = ("score", "constraints", "flags", "rationale", "judgement_package")
    _known(arguments, known)
    score = arguments.get("score")
    if score is not None:
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if not is_number or not 0 <= score <= 1:
            raise NoAnswer(f"score is {score!r:.60}; expected a number from 0 to 1")
    rows = _rows(arguments, "constraints") or _rows(arguments, "judgement_package")
    counts = tuple(_count(row) for row in rows)
    if score is None and not counts:
        raise NoAnswer("neither constraints nor a score; expected at least one of them")
    flags = arguments.get("flags") or []
    if not isinstance(flags, list) or not all(
        isinstance(flag, str) and flag in CAPS for flag in flags
    ):
        raise NoAnswer(f"flags is {flags!r:.80}; expected a list of {', '.join(CAPS)}")
    value = None if score is None else float(score)
    return PointAnswer(value, _text(arguments, "rationale"), counts, tuple(flags))


def _known(arguments: Mapping[str, Any], names: Sequence[str]) -> None:
    extra = sorted(set(arguments) - set(names))
    if extra:
        raise NoAnswer(f"unknown argument {extra[0]!r}; expected {', '.join(names)}")


def _side(value: Any, name: str) -> int:
    side = SIDES.get(value.strip().lower()) if isinstance(value, str) else None
    if side is None:
        raise NoAnswer(f"{name} is {value!r:.60}; expected A, B or Tie")
    return side


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name) or ""
    if not isinstance(value, str):
        raise NoAnswer(f"{name} is {value!r:.60}; expected a text")
    return value


def _rows(arguments: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = arguments.get(name) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise NoAnswer(f"{name} is {rows!r:.60}; expected a list of objects")
    return rows


def _observation(row: Mapping[str, Any]) -> Observation:
    side = _side(row.get("decision"), "decision")
    return Observation(
        _text(row, "criterion"), _text(row, "observation"), side, _text(row, "resource")
    )


def _count(row: Mapping[str, Any]) -> Count:
    is_met = row.get("satisfied")
    if not isinstance(is_met, bool):
        raise NoAnswer(f"satisfied is {is_met!r:.60}; expected true or false")
    name = _text(row, "constraint") or _text(row, "criterion")
    return Count(name, is_met, _text(row, "evidence"), _text(row, "resource"))
