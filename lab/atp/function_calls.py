"""The pattern of ATP-Bench's judge on function calls: BFCL's rows, roles by code.

    python -m lab.atp.function_calls ../shared/data/bfcl          # seconds

Every row is answered by its own expected calls, spoilt in a known way: as they are, without the first,
with one that nobody asked for, with one argument changed. What is there and what is missing must come out
exactly; rows that want no call at all (irrelevance) are answered with none and with one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from burnish.records import Evidence, Message, Response, Task, Visibility
from burnish.rewards.checks.tool_call import Call, Unreadable, is_right, read_calls, read_gold
from burnish.rewards.judges.atp_bench import Case, Gap, Item, Mark, RoleReply, ThreeRoles
from burnish.rewards.judges.atp_bench.needs import best_pairs
from burnish.tasks.rows import read_table

FILES = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "irrelevance")
RESULTS = Path(__file__).resolve().parent / "results"
Calls = list[dict[str, Any]]
EXTRA = {"name": "not_asked_for", "arguments": {"x": 1}}


def expected(truth: Sequence[Mapping[str, Any]] | None) -> Calls:
    """BFCL's ground truth as references: the first value, the others accepted, "" may be left out."""
    found = []
    for one in truth or ():
        ((name, values),) = one.items()
        given = {key: [v for v in listed if v != ""] for key, listed in values.items()}
        found.append(
            {
                "name": name,
                "arguments": {key: listed[0] for key, listed in given.items() if listed},
                "accepted": {key: listed[1:] for key, listed in given.items() if listed[1:]},
                "optional": [key for key, listed in values.items() if "" in listed],
            }
        )
    return found


def plain(calls: Calls) -> Calls:
    """The calls as a model would write them."""
    return [{"name": one["name"], "arguments": one["arguments"]} for one in calls]


def changed(calls: Calls) -> Calls:
    """One argument of the last call with another value; a call without any is renamed."""
    *rest, last = calls
    arguments = dict(last["arguments"])
    if not arguments:
        return [*rest, {**last, "name": f"{last['name']}_"}]
    key = next(iter(arguments))
    return [*rest, {**last, "arguments": {**arguments, key: {"changed": True}}}]


SPOILT: dict[str, Callable[[Calls], Calls]] = {
    "as expected": lambda calls: calls,
    "one left out": lambda calls: calls[1:],
    "one too many": lambda calls: [*calls, EXTRA],
    "one argument changed": changed,
}


def function_call_scorer() -> ThreeRoles:
    """A scorer of the calls in JSON of a response against those in the task's `answer`."""
    return ThreeRoles(
        "function_calls",
        parse=_parse,
        present=_present,
        missing=_missing,
        needs=frozenset({"answer"}),
    )


def _parse(task: Task, response: Response) -> Sequence[Item]:
    try:
        calls = read_calls(response.text, "json")
    except Unreadable as problem:
        return [Item("", response.text[:200], valid=False, reason=str(problem))]
    return [Item(call.name, call) for call in calls]


async def _present(case: Case, number: int) -> RoleReply[Mapping[int, Mark]]:
    wanted = read_gold(case.task.fields["answer"]).calls
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


async def _missing(case: Case, number: int) -> RoleReply[Sequence[Gap]]:
    wanted = read_gold(case.task.fields["answer"]).calls
    met = matched(wanted, [case.items[place].value for place in case.valid])
    # By number: the same call may be expected twice.
    return RoleReply(
        [
            Gap(f"call {place + 1}", f"{call.name}({', '.join(call.arguments)})", call.name)
            for place, call in enumerate(wanted)
            if place not in met
        ]
    )


def matched(wanted: Sequence[Call], calls: Sequence[Call]) -> dict[int, int]:
    """The most expected calls that can be met at once: place of the call by place of the expected."""
    fits = [[n for n, call in enumerate(calls) if is_right(call, one)] for one in wanted]
    return best_pairs(fits)


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Mean precision, recall, F1 and missing calls by how answers are spoilt."""
    rows = [row.values for name in FILES for row in read_table(folder / f"{name}.parquet").rows]
    scorer = function_call_scorer()
    found = {}
    for name, spoil in SPOILT.items():
        totals: dict[str, list[float]] = {}
        for row in rows:
            gold = expected(json.loads(row["ground_truth"]))
            if not gold and name in ("one left out", "one argument changed"):
                continue
            task = Task(str(row["id"]), (Message("user", str(row["question"])),), {"answer": gold})
            answer = Response("r", json.dumps(spoil(plain(gold))))
            (reward,) = anyio.run(partial(scorer.score, task, [answer]))
            for key, value in reward.components.items():
                if value is not None:
                    totals.setdefault(key, []).append(value)
        found[name] = {key: sum(values) / len(values) for key, values in totals.items()}
        found[name]["rows"] = len(totals["f1"])
    return found


def report(found: Mapping[str, Mapping[str, float]]) -> str:
    """The table as text."""
    keys = ("rows", "precision", "recall", "f1", "missed")
    lines = [
        "# atp: function calls of BFCL, judged by code", "",
        "Expected calls, spoilt in a known way; means over rows for which the figure is defined.", "",
        f"| answers | {' | '.join(keys)} |", f"| --- |{' --- |' * len(keys)}",
    ]  # fmt: skip
    for name, row in found.items():
        cells = [f"{row[key]:.0f}" if key == "rows" else f"{row[key]:.3f}" for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Repeat: `python -m lab.atp.function_calls DATA/bfcl`.", ""])


def main(folder: Path, place: Path = RESULTS) -> int:
    """Measure, write and print."""
    text = report(measure(folder))
    place.mkdir(parents=True, exist_ok=True)
    (place / "function_calls.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
