"""What a judge came to on a benchmark: scores by subset and order, as records.

live_result("llmbar", "direct@smollm2", items, judged)
recorded_results("llmbar", Path("judges.parquet"), items)
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.bench.items import Choice, Item, Judged, choice_of, oracle_share, responses_of
from burnish.bench.judge_accuracy import (
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
from burnish.bench.judging import ResultFile
from burnish.bench.loaders.labelled import Marked, rubric_score
from burnish.bench.loaders.reading import read_rows, text_of
from burnish.bench.statistics import Estimate, as_record, estimate_of, mean_estimate
from burnish.errors import UserError
from burnish.numbers import grouped
from burnish.records import Response, Reward, Status, Task, Verdict
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.simple import PointRubric
from burnish.rewards.scorer import Scope
from burnish.seeds import derive, digest
from burnish.texts import counted

logger = logging.getLogger(__name__)


class PointScore(NamedTuple):
    score: Estimate | None
    clipped: float | None
    """The mean cut to [0, 1], as HealthBench reports it."""
    items: int
    failed: int
    subsets: dict[str, Estimate]


def point_score(judged: Sequence[Judged]) -> PointScore:
    """Mean of the values with an interval, over all and by subset; missing is not 0."""
    known = [
        (one.subset, v)
        for one in judged
        if one.is_valid and (v := next(iter(one.values), None)) is not None
    ]
    groups = grouped(known)
    score = estimate_of(value for _, value in known)
    clipped = None if score is None else min(max(score.value, 0.0), 1.0)
    subsets = {name: mean_estimate.plain(groups[name]) for name in sorted(groups)}
    return PointScore(score, clipped, len(judged), len(judged) - len(known), subsets)


def judged_marks(marked: Sequence[Marked], judge: str) -> list[Judged]:
    """Recorded marks as judged items; the score is recomputed from marks and points."""
    found = []
    for one in marked:
        both = zip(one.demands, one.met, strict=True)
        verdicts = tuple(Verdict(demand.text, float(met)) for demand, met in both)
        points = [demand.points for demand in one.demands]
        reward = pointed(Reward(judge, 0.0, verdicts=verdicts), points)
        value = reward.value
        found.append(
            Judged(
                one.item.id,
                judge,
                "healthbench",
                values=(value,),
                choice=None if value is None else (0,),
                status=reward.status,
                reason=reward.reason,
                subset=one.item.subset,
                info={} if one.recorded is None else {"recorded": repr(one.recorded)},
                rewards=(reward,),
            )
        )
    return found


def largest_deviation(judged: Sequence[Judged]) -> float | None:
    """How far recomputed scores lie from those on record; None where none is on record."""
    gaps = [
        abs(one.values[0] - float(one.info["recorded"]))
        for one in judged
        if "recorded" in one.info and one.values and one.values[0] is not None
    ]
    return max(gaps) if gaps else None


class Obeyed(NamedTuple):
    obeyed: int
    decided: int
    undecided: int


def by_instruction(judged: Sequence[Judged]) -> dict[str, Obeyed]:
    verdicts = [verdict for one in judged for reward in one.rewards for verdict in reward.verdicts]
    said = grouped((verdict.criterion, verdict.value) for verdict in verdicts)
    found = {}
    for name in sorted(said):
        known = [value > 0 for value in said[name] if value is not None]
        found[name] = Obeyed(sum(known), len(known), len(said[name]) - len(known))
    return found


def with_answers(items: Sequence[Item], path: Path) -> list[Item]:
    """Items with the responses of a file, matched by id (`id` or `key`), else by prompt.

    Items that the file does not answer are left out.
    """
    rows = read_rows(path, "a file of answers", [("response",), ("completion",), ("text",)])
    texts: dict[str, str] = {}
    for row in rows:
        column = next(c for c in ("response", "completion", "text") if c in row.values)
        names = [row.values.get(name) for name in ("id", "key", "prompt_id", "prompt")]
        name = next((str(name) for name in names if name is not None), None)
        if name is None:
            raise UserError(f"{row.where}: neither id, key nor prompt says what this answers.")
        texts[name] = text_of(row, column)
    answered = []
    for item in items:
        text = texts.get(item.id, texts.get(item.messages[-1].text))
        if text is not None:
            answered.append(dataclasses.replace(item, responses=responses_of(item.id, [text])))
    if not answered:
        raise UserError(f"{path}: answers no item by id (such as '{items[0].id}') or by prompt.")
    known = {item.id for item in answered} | {item.messages[-1].text for item in answered}
    if strange := [name[:40] for name in texts if name not in known]:
        rows_of = counted(len(strange), "row")
        logger.warning("%s: of %s no item was found: %s", path, rows_of, strange[:4])
    if missing := len(items) - len(answered):
        logger.warning("%s: %d of %d items have no answer there", path, missing, len(items))
    return answered


def pointed(reward: Reward, points: Sequence[float]) -> Reward:
    """A reward by criteria with its value by their points; none where none is positive."""
    if reward.value is None:
        return reward
    value = rubric_score(points, [bool(verdict.value) for verdict in reward.verdicts])
    if value is not None:
        return replace(reward, value=value)
    return Reward.failed(
        reward.name,
        Status.ABSTAIN,
        "the rubric has no positive points",
        evidence=reward.evidence,
        verdicts=reward.verdicts,
    )


class Criterion(Struct):
    criterion: str
    points: float


class PointsJudge:
    """Points of the criteria that are met, over all positive points."""

    name = "points"
    scope = Scope.POINT

    def __init__(self, judge: JudgeModel, *, field: str = "criteria") -> None:
        self.judge, self.field = judge, field
        self.needs = frozenset({field})

    @property
    def fingerprint(self) -> str:
        template = PointRubric(self.judge, ["any"]).fingerprint
        return digest(type(self).__name__, self.field, template)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        try:
            rows = msgspec.convert(task.fields.get(self.field), list[Criterion])
        except msgspec.ValidationError as error:
            raise UserError(f"task {task.id}: field '{self.field}': {error}.") from None
        texts, points = [row.criterion for row in rows], [row.points for row in rows]
        rewards = await PointRubric(self.judge, texts, name=self.name).score(task, responses)
        return [pointed(reward, points) for reward in rewards]


class JudgeResult(NamedTuple):
    name: str
    accuracy: Accuracy
    subsets: Subsets
    judged: Sequence[Judged]
    one_order: Accuracy | None = None
    flips: Flips | None = None
    agreement: Agreement | None = None
    styles: Styles | None = None
    ties: float | None = None
    """RewardBench 2's score of its subset Ties."""
    published: dict[str, float | None] | None = None
    """The figures that a benchmark with pictures publishes, by its own rule."""
    oracle: float = 0.0


def sample_items(items: list[Item], limit: int) -> list[Item]:
    """A sample by id rather than the head of the file; items of one group stay together."""
    if not limit or limit >= len(items):
        return items
    counts = Counter(item.group or item.id for item in items)
    kept: set[str] = set()
    for key in sorted(counts, key=lambda key: derive("limit", key)):
        if sum(counts[one] for one in kept) < limit:
            kept.add(key)
    return [item for item in items if (item.group or item.id) in kept]


def live_result(
    bench: str, name: str, items: Sequence[Item], judged: Sequence[Judged]
) -> JudgeResult:
    """Scores of a judge, with what its two orders said on their own where both were asked."""
    from burnish.rewards.judges.benchmarks import ties_score

    ties = [one for one in judged if bench == "rewardbench2" and one.subset.lower() == "ties"]
    ratings: list[dict[str, Any]] = []
    for one in ties:
        best = one.best or ()
        right = [one.values[place] for place in best]
        wrong = [value for place, value in enumerate(one.values) if place not in best]
        ratings.append({"id": one.id, "num_correct": len(right), "ratings": [*right, *wrong]})
    orders = Orders(_one_order(judged, 0), _one_order(judged, 1))
    return _result(name, judged, orders, items)._replace(
        styles=by_style(judged) if bench == "rmbench" else None,
        ties=ties_score(ratings) if ties else None,
        published=picture_figures(bench, judged),
        oracle=oracle_share(judged),
    )


def _result(
    name: str, judged: Sequence[Judged], orders: Orders, items: Sequence[Item]
) -> JudgeResult:
    people = {item.id: item.people for item in items if item.people}
    has_both = bool(orders.backward)
    return JudgeResult(
        name,
        accuracy(judged),
        by_subset(judged),
        judged,
        one_order=accuracy(orders.forward) if has_both else None,
        flips=flips(orders.forward, orders.backward) if has_both else None,
        agreement=agreement(judged, people) if people else None,
    )


def picture_figures(bench: str, judged: Sequence[Judged]) -> dict[str, float | None] | None:
    """What VL-RewardBench, Multimodal RewardBench and MM-RLHF publish; None for another benchmark.

    A pair without a verdict, and a tie, count as wrong.
    """
    from burnish.rewards.judges.proxy_grm import mm_rlhf, multimodal_rewardbench

    rows: list[Any] = [
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


def recorded_results(bench: str, path: Path, items: Sequence[Item]) -> list[JudgeResult]:
    """Scores of recorded judges: both orders where they have them, and one alone."""
    judges = read_recorded(bench, path, items)
    return [_result(name, judge.judged, judge, items) for name, judge in judges.items()]


def write_results(path: Path, judged: Sequence[Judged]) -> None:
    """Add what was replayed to a result file, where its last line for the item says otherwise."""
    with ResultFile(path) as file:
        last = {(one.judge, one.id): one for one in file.records}
        for one in judged:
            if last.get((one.judge, one.id)) != one:
                file.append(one)


def judge_record(result: JudgeResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "accuracy": as_record(result.accuracy),
        "one_order": as_record(result.one_order),
        "subsets": as_record(result.subsets.each),
        "macro": result.subsets.macro,
        "flips": as_record(result.flips),
        "agreement": as_record(result.agreement),
        "styles": as_record(result.styles),
        "ties_score": result.ties,
        "published": result.published,
        "oracle_share": result.oracle,
        "confusion": [
            {"label": label, "said": said, "count": count}
            for (label, said), count in confusion(result.judged).items()
        ],
    }


# --- recorded judges
#
# Two published forms are known: LLMBar's (both orders, `winner` in the pair's own numbering) and
# PandaLM's (one order). Both are checked against real rows.


_CHOICES: dict[str, Choice] = {"1": (0,), "2": (1,), "0": (0, 1), "tie": (0, 1)}


class Orders(NamedTuple):
    """What a judge said of pairs in each order."""

    forward: list[Judged]
    backward: list[Judged]
    """Empty where it was asked in one only."""

    @property
    def judged(self) -> list[Judged]:
        """One verdict a pair, from both orders where there are two."""
        other = {one.id: one for one in self.backward}
        both = [merge_orders(one, other[one.id]) for one in self.forward if one.id in other]
        return both if self.backward else self.forward


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


def read_recorded(bench: str, path: Path, items: Sequence[Item]) -> dict[str, Orders]:
    """The recorded judges of a benchmark by name; verdicts on other items are left out."""
    known = {item.id: item for item in items}
    forms = {
        "llmbar": ("id", "judge", "winner", "completion", "swapped"),
        "pandalm": ("idx", "judge", "result", "reason"),
    }
    if bench not in forms:
        raise UserError(f"no recorded verdicts of '{bench}', only of llmbar, pandalm, healthbench.")
    name, judged_by, verdict, words, *more = forms[bench]
    shape = (name, judged_by, verdict, *more)
    found: dict[str, Orders] = {}
    for row in read_rows(path, f"recorded {bench}", [shape]):
        values = row.values
        item = known.get(str(values[name]))
        if item is None:
            continue
        is_llmbar = bench == "llmbar"
        prompt = f"/{values['prompt']}" if is_llmbar and values.get("prompt") else ""
        judge = f"{values[judged_by]}{prompt}"
        choice = _CHOICES.get(str(values[verdict]).strip().lower())
        count = len(item.responses)
        one = Judged(
            item.id,
            judge,
            bench,
            values=tuple(None if choice is None else float(n in choice) for n in range(count)),
            choice=choice,
            best=item.best,
            subset=item.subset,
            group=item.group,
            info=item.info,
        )
        if choice is None:
            why = f"no verdict in the recorded reply: {str(values.get(words) or '')[-200:]!r}"
            one = replace(one, status=Status.PARSE_ERROR, reason=why)
        found.setdefault(judge, Orders([], []))[is_llmbar and bool(values["swapped"])].append(one)
    if not found:
        raise UserError(f"{path}: no verdict on any of the {len(items)} items; another split?")
    return dict(sorted(found.items()))
