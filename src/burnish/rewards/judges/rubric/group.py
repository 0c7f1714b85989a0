"""Rubric scores of a group made fit for training: noise levelled, progress stretched.

    Stabilised(RubricScorer(judge), equal_within=0.05, mean_of_references="reference_score")

Scores that are too close to tell apart become one, so that a group norm cannot blow their noise up,
and what exceeds the reference models counts more (QuarkMedBench, arXiv 2603.13691, eq. 5 and 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from burnish.errors import UserError
from burnish.records import Response, Reward, Task
from burnish.rewards.combine import Combination
from burnish.rewards.judges.rubric.agreement import EQUAL_WITHIN, merge_equal, scale_reward
from burnish.rewards.scorer import Scope, Scorer, as_float, checked


class Stabilised(Combination):
    """A point scorer whose scores are merged within the group and scaled above the references.

    `mean_of_references` is a number, the name of a task field that holds one, or None for no
    scaling; a task without a number there is left unscaled.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        equal_within: float = EQUAL_WITHIN,
        mean_of_references: float | str | None = None,
        w_scale: float = 2.0,
        name: str = "",
    ) -> None:
        title = name or scorer.name
        if scorer.scope is not Scope.POINT:
            raise UserError(
                f"reward '{title}': '{scorer.name}' has scope {scorer.scope.value}; expected point."
            )
        if not equal_within >= 0 or not 0 < w_scale < math.inf:
            raise UserError(
                f"reward '{title}': equal_within is {equal_within} and w_scale {w_scale}; expected "
                "at least 0, and more than 0."
            )
        settings = (equal_within, mean_of_references, w_scale)
        super().__init__(title, (scorer,), Scope.GROUP, *settings)
        self.equal_within, self.mean_of_references, self.w_scale = settings
        self.weight: float = getattr(scorer, "weight", 1.0)
        if isinstance(mean_of_references, str):
            self.needs |= {mean_of_references}

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        own = await checked(self.children[0], task, responses)
        merged = merge_equal([reward.value for reward in own], self.equal_within)
        mean = self._mean(task)
        rewards = []
        for reward, value in zip(own, merged, strict=True):
            if value is None or reward.value is None:
                rewards.append(replace(reward, name=self.name))
                continue
            final = value if mean is None else scale_reward(value, mean, self.w_scale)
            told = f"{reward.value:.4g}, merged to {value:.4g}, as a reward {final:.4g}"
            reason = f"{told}; {reward.reason}" if reward.reason else told
            rewards.append(replace(reward, name=self.name, value=final, reason=reason))
        return rewards

    def _mean(self, task: Task) -> float | None:
        given = self.mean_of_references
        number = as_float(task.fields.get(given) if isinstance(given, str) else given)
        return number if math.isfinite(number) else None
