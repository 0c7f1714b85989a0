"""HealthBench's way of marking: a judge says of each criterion whether it is met, points decide.

    scorer = PointsJudge(JudgeModel(lm))       # the task's field `criteria`: [{criterion, points}]

The judge sees the criteria and never their points, so that a negative one is no hint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from burnish.bench.loaders.points import rubric_score
from burnish.errors import UserError
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.point import PointRubric
from burnish.rewards.scorer import Scope
from burnish.seeds import digest


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
