"""What a judge came to on a benchmark: scores by subset and order, as records.

live_result("llmbar", "direct@smollm2", items, judged)
recorded_results("llmbar", Path("judges.parquet"), items)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from burnish.bench.accuracy import (
    Accuracy,
    Agreement,
    Flips,
    Styles,
    Subsets,
    accuracy,
    agreement,
    by_style,
    by_subset,
    confusion,
    flips,
)
from burnish.bench.items import Choice, Item, Judged, choice_of, oracle_share
from burnish.bench.judging import ResultFile
from burnish.bench.loaders.reading import Source, read_rows
from burnish.bench.point_scores import PointScore
from burnish.bench.statistics import Estimate
from burnish.errors import UserError
from burnish.records import Reward, Status
from burnish.seeds import derive


class JudgeResult(NamedTuple):
    """One judge on one benchmark of choices."""

    name: str
    accuracy: Accuracy
    subsets: Subsets
    judged: Sequence[Judged]
    one_order: Accuracy | None = None
    """With the responses in the file's order only."""
    flips: Flips | None = None
    agreement: Agreement | None = None
    styles: Styles | None = None
    ties: float | None = None
    """RewardBench 2's score of its subset Ties."""
    published: dict[str, float | None] | None = None
    """The figures that a benchmark with pictures publishes, by its own rule."""
    oracle: float = 0.0
    """Share of the verdicts that rest on the label."""


def sample_items(items: list[Item], limit: int) -> list[Item]:
    """A sample by id rather than the head of the file; items of one group stay together."""
    if not limit or limit >= len(items):
        return items
    keys = sorted({item.group or item.id for item in items}, key=lambda k: derive("limit", k))
    kept: set[str] = set()
    size = 0
    counts: dict[str, int] = {}
    for item in items:
        counts[item.group or item.id] = counts.get(item.group or item.id, 0) + 1
    for key in keys:
        if size >= limit:
            break
        kept.add(key)
        size += counts[key]
    return [item for item in items if (item.group or item.id) in kept]


def live_result(
    bench: str, name: str, items: Sequence[Item], judged: Sequence[Judged]
) -> JudgeResult:
    """Scores of a judge, with what its two orders said on their own where both were asked."""
    from burnish.rewards.judges.benchmarks import ties_score

    forward, backward = _one_order(judged, 0), _one_order(judged, 1)
    people = {item.id: item.people for item in items if item.people}
    ties = [one for one in judged if bench == "rewardbench2" and one.subset.lower() == "ties"]
    return JudgeResult(
        name,
        accuracy(judged),
        by_subset(judged),
        judged,
        one_order=accuracy(forward) if forward else None,
        flips=flips(forward, backward) if forward else None,
        agreement=agreement(judged, people) if people else None,
        styles=by_style(judged) if bench == "rmbench" else None,
        ties=ties_score([_ratings(one) for one in ties]) if ties else None,
        published=picture_figures(bench, judged),
        oracle=oracle_share(judged),
    )


def picture_figures(bench: str, judged: Sequence[Judged]) -> dict[str, float | None] | None:
    """What VL-RewardBench, Multimodal RewardBench and MM-RLHF publish; None for another benchmark.

    A pair without a verdict, and a tie, count as wrong.
    """
    from burnish.rewards.judges.proxy_grm import mm_rlhf, multimodal_rewardbench

    rows = [
        {
            "id": one.info.get("name", one.id),
            "Category": one.info.get("category", ""),
            "image": one.info.get("image", ""),
            "rewards": list(one.values) if one.is_valid else [0.0, 0.0],
            "reverse": one.best == (1,),
        }
        for one in judged
    ]
    if bench == "mm_rlhf":
        found = mm_rlhf(rows)
        return {"acc": found["acc"], "acc+": found["acc_plus"]}
    if bench == "multimodal_rewardbench":
        found = multimodal_rewardbench(rows)
        return {"micro": found["micro"], "macro": found["macro"]}
    if bench == "vl_rewardbench":
        # By the group of the item, which the folder of the picture says; ids alone do not.
        subsets = by_subset(judged)
        every = accuracy(judged).all
        return {"micro": None if every is None else every.value, "macro": subsets.macro}
    return None


def _one_order(judged: Sequence[Judged], place: int) -> list[Judged]:
    """What one of two orders said of each pair; empty where a judge was asked in one only."""
    found = []
    for one in judged:
        parts = [_order_parts(reward) for reward in one.rewards]
        if len(parts) != 2 or not all(len(part) == 2 for part in parts):
            return []
        values = tuple(part[place].value for part in parts)
        status = parts[0][place].status
        found.append(
            replace(one, values=values, choice=choice_of(values), status=status, rewards=())
        )
    return found


def _order_parts(reward: Reward) -> list[Reward]:
    """The parts `forward` and `backward` of a reward from both orders, wherever they stand."""
    named = {part.name: part for part in reward.parts}
    if {"forward", "backward"} <= named.keys():
        return [named["forward"], named["backward"]]
    for part in reward.parts:
        if found := _order_parts(part):
            return found
    return []


def _ratings(one: Judged) -> dict[str, Any]:
    """A row of the Ties subset: ratings of the right answers first."""
    right = [one.values[place] for place in one.best or ()]
    wrong = [v for place, v in enumerate(one.values) if place not in (one.best or ())]
    return {"id": one.id, "num_correct": len(right), "ratings": [*right, *wrong]}


def recorded_results(bench: str, path: Path, items: Sequence[Item]) -> list[JudgeResult]:
    """Scores of recorded judges: both orders where they have them, and one alone."""
    judges = read_recorded(bench, path, items)
    people = {item.id: item.people for item in items if item.people}
    results = []
    for judge in judges.values():
        has_both = bool(judge.both)
        judged = judge.both if has_both else judge.forward
        results.append(
            JudgeResult(
                judge.name,
                accuracy(judged),
                by_subset(judged),
                judged,
                one_order=accuracy(judge.forward) if has_both else None,
                flips=flips(judge.forward, judge.backward) if has_both else None,
                agreement=agreement(judged, people) if people else None,
            )
        )
    return results


def write_results(path: Path, judged: Sequence[Judged]) -> None:
    """Add what was replayed to a result file, where its last line for the item says otherwise."""
    with ResultFile(path) as file:
        last = {(one.judge, one.id): one for one in file.records}
        for one in judged:
            if last.get((one.judge, one.id)) != one:
                file.append(one)


def judge_record(result: JudgeResult) -> dict[str, Any]:
    """One judge for machines."""
    return {
        "name": result.name,
        "accuracy": accuracy_record(result.accuracy),
        "one_order": None if result.one_order is None else accuracy_record(result.one_order),
        "subsets": {name: accuracy_record(a) for name, a in result.subsets.each.items()},
        "macro": result.subsets.macro,
        "flips": None if result.flips is None else _named(result.flips._asdict()),
        "agreement": None if result.agreement is None else _named(result.agreement._asdict()),
        "styles": None if result.styles is None else result.styles._asdict(),
        "ties_score": result.ties,
        "published": result.published,
        "oracle_share": result.oracle,
        "confusion": [
            {"label": label, "said": said, "count": count}
            for (label, said), count in confusion(result.judged).items()
        ],
    }


def accuracy_record(found: Accuracy) -> dict[str, Any]:
    """An accuracy with its intervals as objects."""
    return _named(found._asdict())


def points_record(found: PointScore) -> dict[str, Any]:
    """A mean score with its intervals as objects."""
    record = _named(found._asdict())
    record["subsets"] = {name: e._asdict() for name, e in found.subsets.items()}
    return record


def _named(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v._asdict() if isinstance(v, Estimate) else v for k, v in record.items()}


# --- recorded judges
#
# Two published forms are known: LLMBar's (both orders, `winner` in the pair's own numbering) and
# PandaLM's (one order). Both are checked against real rows.


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
