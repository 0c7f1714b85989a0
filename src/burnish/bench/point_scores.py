"""Benchmarks that score one response a prompt: HealthBench's rubrics and IFEval's instructions."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from burnish.bench.items import Item, Judged, responses_of
from burnish.bench.loaders.points import Marked, rubric_score
from burnish.bench.loaders.reading import read_rows, text_of
from burnish.bench.statistics import Estimate, mean_estimate
from burnish.errors import UserError
from burnish.grouping import grouped
from burnish.records import Response, Reward, Status, Task, Verdict
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.simple import PointRubric
from burnish.rewards.scorer import Scope
from burnish.seeds import digest
from burnish.texts import counted

logger = logging.getLogger(__name__)


class PointScore(NamedTuple):
    """The mean score of a set of responses."""

    score: Estimate | None
    """Over the items that have a value."""
    clipped: float | None
    """The mean cut to [0, 1], as HealthBench reports it."""
    items: int
    failed: int
    subsets: dict[str, Estimate]


def point_score(judged: Sequence[Judged]) -> PointScore:
    """Mean of the values with an interval, over all and by subset; missing is not 0."""
    known = [(one.subset, one.values[0]) for one in judged if one.values and one.is_valid]
    values = [value for _, value in known if value is not None]
    groups = grouped((subset, value) for subset, value in known if value is not None)
    score = mean_estimate(values) if values else None
    clipped = None if score is None else min(max(score.value, 0.0), 1.0)
    subsets = {name: mean_estimate(groups[name]) for name in sorted(groups)}
    return PointScore(score, clipped, len(judged), len(judged) - len(values), subsets)


def judged_marks(marked: Sequence[Marked], judge: str) -> list[Judged]:
    """Recorded marks as judged items; the score is recomputed from marks and points."""
    found = []
    for one in marked:
        points = [demand.points for demand in one.demands]
        value = rubric_score(points, one.met)
        verdicts = tuple(
            Verdict(demand.text, float(met))
            for demand, met in zip(one.demands, one.met, strict=True)
        )
        if value is None:
            reason = "the rubric has no positive points"
            reward = Reward.failed(judge, Status.ABSTAIN, reason, verdicts=verdicts)
        else:
            reward = Reward(judge, value, verdicts=verdicts)
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
    """How one kind of instruction was obeyed."""

    obeyed: int
    decided: int
    undecided: int


def by_instruction(judged: Sequence[Judged]) -> dict[str, Obeyed]:
    """Counts for each instruction id, from the verdicts."""
    counts: dict[str, list[int]] = {}
    for one in judged:
        for reward in one.rewards:
            for verdict in reward.verdicts:
                count = counts.setdefault(verdict.criterion, [0, 0, 0])
                if verdict.value is None:
                    count[2] += 1
                else:
                    count[0] += verdict.value > 0
                    count[1] += 1
    return {name: Obeyed(*counts[name]) for name in sorted(counts)}


def with_answers(items: Sequence[Item], path: Path) -> list[Item]:
    """Items with the responses of a file, matched by id (`id` or `key`), else by prompt.

    Items that the file does not answer are left out.
    """
    rows = read_rows(path, "a file of answers", [("response",), ("completion",), ("text",)])
    by_id: dict[str, str] = {}
    by_prompt: dict[str, str] = {}
    for row in rows:
        column = next(c for c in ("response", "completion", "text") if c in row.values)
        name = next((c for c in ("id", "key", "prompt_id") if row.values.get(c) is not None), None)
        if name is not None:
            by_id[str(row.values[name])] = text_of(row, column)
        elif isinstance(row.values.get("prompt"), str):
            by_prompt[row.values["prompt"]] = text_of(row, column)
        else:
            raise UserError(f"{row.where}: neither id, key nor prompt says what this answers.")
    found = [_answered(item, by_id, by_prompt) for item in items]
    answered = [item for item in found if item is not None]
    if not answered:
        raise UserError(
            f"{path}: answers none of the {len(items)} items; expected ids such as '{items[0].id}', "
            "or their prompts in a column prompt."
        )
    known = {item.id for item in answered} | {item.messages[-1].text for item in answered}
    strange = [name for name in (*by_id, *by_prompt) if name not in known]
    if strange:
        shown = ", ".join(repr(name[:40]) for name in strange[:4]) + ", ..." * (len(strange) > 4)
        logger.warning("%s: of %s no item was found: %s", path, counted(len(strange), "row"), shown)
    if missing := len(items) - len(answered):
        logger.warning("%s: %d of %d items have no answer there", path, missing, len(items))
    return answered


def _answered(item: Item, by_id: Mapping[str, str], by_prompt: Mapping[str, str]) -> Item | None:
    text = by_id.get(item.id)
    if text is None:
        text = by_prompt.get(item.messages[-1].text)
    return (
        None if text is None else dataclasses.replace(item, responses=responses_of(item.id, [text]))
    )


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
        texts, points = _criteria(task, self.field)
        rewards = await PointRubric(self.judge, texts, name=self.name).score(task, responses)
        return [self._pointed(reward, points) for reward in rewards]

    def _pointed(self, reward: Reward, points: Sequence[float]) -> Reward:
        """The same marks with HealthBench's score in the place of the plain share."""
        if reward.value is None:
            return reward
        met = [bool(verdict.value) for verdict in reward.verdicts]
        value = rubric_score(points, met)
        if value is None:
            reason = "the rubric has no positive points"
            return Reward.failed(
                self.name,
                Status.ABSTAIN,
                reason,
                evidence=reward.evidence,
                verdicts=reward.verdicts,
            )
        return replace(reward, value=value)


def _criteria(task: Task, field: str) -> tuple[list[str], list[float]]:
    rows: Any = task.fields.get(field)
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise UserError(
            f"task {task.id}: field '{field}' is {type(rows).__name__}; expected a list of criteria "
            "with points."
        )
    return [str(row["criterion"]) for row in rows], [float(row["points"]) for row in rows]
