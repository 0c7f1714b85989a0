"""A run's rewards, scored by the judges of its cluster: any of several servers of the same rewards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import anyio

from burnish.engines.client import RemoteScorer
from burnish.errors import UserError
from burnish.lm.failures import EXPECTED, classify
from burnish.lm.jobs import Limits
from burnish.records import Response, Reward, Task
from burnish.rewards.combine import Weighted
from burnish.rewards.scorer import fingerprint

PAUSE_S = 0.5
"""Before all judges are asked once more."""


class ServedRewards(Weighted):
    """The same parts and weights; a group is scored by the judge whose turn it is, else the next."""

    def __init__(
        self, own: Weighted, urls: Sequence[str], *, token_env: str, attempt_s: float, away_s: float
    ) -> None:
        """A judge has `attempt_s` for a group; groups that none has scored within `away_s` more get
        no value.
        """
        weights = {
            part.name: weight for part, weight in zip(own.children, own.weights, strict=True)
        }
        super().__init__(own.children, weights=weights, name=own.name)
        limits = Limits(retries=0, attempt_s=attempt_s, deadline_s=attempt_s, concurrency=256)
        self.away_s = away_s
        self.judges = [RemoteScorer(url, token_env=token_env, limits=limits) for url in urls]
        self._turn = itertools.count()
        for judge in self.judges:
            if judge.about.fingerprint != fingerprint(own):
                raise UserError(
                    f"{judge!r} serves another reward than this run's; expected the same recipe, "
                    "settings and files"
                )

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """Rewards of one judge; where it died another one is asked, or it is asked again."""
        ends = time.monotonic() + self.away_s
        number = next(self._turn)
        while True:
            judge = self.judges[number % len(self.judges)]
            try:
                return await judge.ask(task, responses)
            except EXPECTED as error:
                if not classify(error).retry or time.monotonic() > ends:
                    return judge.failed(error, responses)
            await anyio.sleep(PAUSE_S / len(self.judges))
            number += 1
