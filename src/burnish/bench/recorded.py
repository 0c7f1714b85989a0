"""Verdicts that judges gave long ago, replayed: any aggregation without a call.

    judges = read_recorded("llmbar", Path("recorded_judges/llmbar.parquet"), items)
    judges["GPT-4/CoT"].both           # votes of both orders, in the items' own numbering

Two published forms are known: LLMBar's (both orders, `winner` in the pair's own numbering) and
PandaLM's (one order). Both are checked against real rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from burnish.bench.items import Choice, Item, Judged
from burnish.bench.loaders.reading import Source, read_rows
from burnish.errors import UserError
from burnish.records import Status

_CHOICES: dict[str, Choice] = {"1": (0,), "2": (1,), "0": (0, 1), "tie": (0, 1)}


@dataclass(frozen=True)
class RecordedJudge:
    """One judge's verdicts, by order."""

    name: str
    forward: list[Judged]
    backward: list[Judged]
    """Empty where only one order was recorded."""

    @property
    def both(self) -> list[Judged]:
        """One verdict a pair from both orders; empty where there is only one order."""
        if not self.backward:
            return []
        other = {one.id: one for one in self.backward}
        return [merge_orders(one, other[one.id]) for one in self.forward if one.id in other]


def merge_orders(forward: Judged, backward: Judged) -> Judged:
    """The votes of two orders, both in the item's numbering; opposite winners make a tie.

    An order without a verdict leaves the pair without one.
    """
    failed = next((one for one in (forward, backward) if one.choice is None), None)
    if failed is not None:
        reason = f"one order has no verdict: {failed.reason}"
        values = (None, None)
        return replace(forward, choice=None, values=values, status=failed.status, reason=reason)
    total = (_vote(forward.choice) + _vote(backward.choice)) / 2
    choice: Choice = (0,) if total > 0 else (1,) if total < 0 else (0, 1)
    return replace(forward, choice=choice, values=(total, -total), status=Status.OK, reason="")


def _vote(choice: Choice | None) -> int:
    return 1 if choice == (0,) else -1 if choice == (1,) else 0


def read_recorded(bench: str, path: Path, items: Sequence[Item]) -> dict[str, RecordedJudge]:
    """The recorded judges of a benchmark by name; verdicts on other items are left out."""
    known = {item.id: item for item in items}
    if bench == "llmbar":
        said = _llmbar(read_rows(path, "recorded LLMBar", [("id", "judge", "swapped", "winner")]))
    elif bench == "pandalm":
        said = _pandalm(read_rows(path, "recorded PandaLM", [("idx", "judge", "result")]))
    else:
        raise UserError(
            f"no recorded verdicts are known for '{bench}'; expected llmbar, pandalm or healthbench."
        )
    found: dict[str, tuple[list[Judged], list[Judged]]] = {}
    for judge, id, is_swapped, choice, text in said:
        if id not in known:
            continue
        orders = found.setdefault(judge, ([], []))
        orders[is_swapped].append(_judged(bench, judge, known[id], choice, text))
    if not found:
        raise UserError(
            f"{path}: no verdict on any of the {len(items)} items; is it another split?"
        )
    return {name: RecordedJudge(name, *orders) for name, orders in sorted(found.items())}


Said = tuple[str, str, bool, Choice | None, str]
"""Judge, item, whether the second response stood first, the choice, and the judge's words."""


def _llmbar(rows: Sequence[Source]) -> Iterator[Said]:
    for row in rows:
        values = row.values
        prompt = f"/{values['prompt']}" if values.get("prompt") else ""
        said = str(values.get("completion") or "")
        choice = _choice(values, "winner")
        yield f"{values['judge']}{prompt}", str(values["id"]), bool(values["swapped"]), choice, said


def _pandalm(rows: Sequence[Source]) -> Iterator[Said]:
    for row in rows:
        said = str(row.values.get("reason") or "")
        choice = _choice(row.values, "result")
        yield str(row.values["judge"]), str(row.values["idx"]), False, choice, said


def _choice(values: Mapping[str, object], column: str) -> Choice | None:
    return _CHOICES.get(str(values[column]).strip().lower())


def _judged(bench: str, judge: str, item: Item, choice: Choice | None, text: str) -> Judged:
    values = tuple(1.0 if place in (choice or ()) else 0.0 for place in range(len(item.responses)))
    failed = choice is None
    return Judged(
        item.id,
        judge,
        bench,
        values=(None,) * len(item.responses) if failed else values,
        choice=choice,
        best=item.best,
        status=Status.PARSE_ERROR if failed else Status.OK,
        reason=f"no verdict in the recorded reply: {text[-200:]!r}" if failed else "",
        subset=item.subset,
        group=item.group,
        info=item.info,
    )
