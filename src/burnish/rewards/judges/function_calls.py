"""Function calls judged by code: which are right, which are missing (one use of `ThreeRoles`).

    scorer = function_call_scorer(field="answer")
    (reward,) = await scorer.score(task, [response])
    reward.components         # f1, precision, recall, validity, missed

The task's field holds the expected calls, as for the reward `tool_call`: block text, JSON text or a
list of calls, each with further accepted values. A call is right where all of its arguments are; each
expected call is met once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from burnish.arguments import as_text, as_word
from burnish.records import Evidence, Response, Task, Visibility
from burnish.rewards.checks.tool_call import (
    Call,
    Dialect,
    Unreadable,
    is_right,
    read_calls,
    read_gold,
)
from burnish.rewards.judges.atp_bench.needs import best_pairs
from burnish.rewards.judges.atp_bench.three_roles import (
    Case,
    Gap,
    Item,
    Mark,
    RoleReply,
    ThreeRoles,
    Value,
)


def function_call_scorer(
    field: str = "answer", dialect: Dialect = "json", value: Value = "f1"
) -> ThreeRoles:
    """A scorer of the calls of a response against those that the task expects.

    >>> function_call_scorer().name
    'function_calls'
    """
    as_text("field", field), as_word("dialect", dialect, ("blocks", "json"))
    return ThreeRoles(
        "function_calls",
        parse=partial(_parse, dialect=dialect),
        present=partial(_present, field=field),
        missing=partial(_missing, field=field),
        value=value,
        needs=frozenset({field}),
        settings=f"{field} {dialect}",
    )


def _parse(task: Task, response: Response, dialect: Dialect) -> Sequence[Item]:
    try:
        calls = read_calls(response.text, dialect)
    except Unreadable as problem:
        return [Item("", response.text[:200], valid=False, reason=str(problem))]
    return [Item(call.name, call) for call in calls]


async def _present(case: Case, number: int, field: str) -> RoleReply[Mapping[int, Mark]]:
    wanted = read_gold(case.task.fields[field]).calls
    pairs = matched(wanted, [case.items[place].value for place in case.valid])
    right = {case.valid[call] for call in pairs.values()}
    names = {call.name for call in wanted}
    marks = {}
    for place in case.valid:
        known = case.items[place].kind in names
        reason = "other arguments, or once too often" if known else "not expected"
        marks[place] = Mark(place in right, "as expected" if place in right else reason)
    saw = Evidence("expected calls", f"{len(wanted)} calls", Visibility.ORACLE)
    return RoleReply(marks, evidence=(saw,))


async def _missing(case: Case, number: int, field: str) -> RoleReply[Sequence[Gap]]:
    wanted = read_gold(case.task.fields[field]).calls
    met = matched(wanted, [case.items[place].value for place in case.valid])
    # By number: the same call may be expected twice.
    return RoleReply(
        [
            Gap(f"call {number + 1}", f"{call.name}({', '.join(call.arguments)})", call.name)
            for number, call in enumerate(wanted)
            if number not in met
        ]
    )


def matched(wanted: Sequence[Call], calls: Sequence[Call]) -> dict[int, int]:
    """The most expected calls that can be met at once: place of the call by place of the expected.

    >>> matched([Call("a", {"x": 1})], [Call("b", {}), Call("a", {"x": 1})])
    {0: 1}
    """
    fits = [[n for n, call in enumerate(calls) if is_right(call, one)] for one in wanted]
    return best_pairs(fits)
