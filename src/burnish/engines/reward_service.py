"""Where scoring happens behind the server: slots, deadlines and jobs, without any HTTP.

desk = RewardService(scorer, ServeSettings(concurrency=16))
rewards = await desk.score(task, responses)
results = await desk.batch(items)           # in order; a bad item costs only itself
work = desk.begin(items)                    # the same, without waiting
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from burnish.arguments import plain_number, shown
from burnish.engines.messages import ScoreBody, read, reward_body
from burnish.errors import BoundaryError, BurnishError, RewardError, UserError
from burnish.records import Response, Reward, Task
from burnish.rewards.fingerprint import fingerprint
from burnish.rewards.scorer import Scorer, checked, gather

logger = logging.getLogger(__name__)


class ServeSettings(Struct, frozen=True, kw_only=True):
    """How much a reward server takes on."""

    concurrency: int = 16
    """Tasks that are scored at the same time, over all requests and jobs."""
    waiting: int = 1024
    """Tasks that may be under way or wait for a slot; beyond that new ones are told to come back
    (503), unless there are none."""
    deadline_s: float = 120.0
    """Wall clock of one task's scoring; its rewards are then `timeout`."""
    max_connections: int = 512
    """Open at the same time; beyond that the one that has waited longest for its client is closed."""
    request_s: float = 30.0
    """How long a client may take to send its whole request; its headers, 10 s."""
    max_body_bytes: int = 8 * 1024 * 1024
    max_items: int = 1024
    """Tasks in one batch or job."""
    max_responses: int = 256
    """Responses to one task."""
    max_jobs: int = 64
    """Jobs that are kept, running or done."""
    keep_s: float = 3600.0
    """How long a finished job's results wait to be fetched."""
    stop_s: float = 30.0
    """How long running requests may go on after the server was told to stop."""

    def __post_init__(self) -> None:
        for name, usual in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            value = getattr(self, name)
            number = plain_number(value)
            is_whole = isinstance(usual, int)
            if (
                number is None
                or not (0 < number < math.inf)
                or (is_whole and not isinstance(value, int))
            ):
                kind = "whole number" if is_whole else "number"
                raise UserError(
                    f"serve-reward: {name} is {shown(value)}; expected a {kind} above 0."
                )


class Busy(BoundaryError):
    """More work is waiting than the server takes on."""


class JobState(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    """Being scored."""
    DONE = "done"
    """Every item has its result."""
    CANCELLED = "cancelled"
    """Taken back by the client or by the server's end."""


class Work:
    """One job: its items' results, and how far it is."""

    def __init__(self, name: str, total: int) -> None:
        self.id, self.total, self.done = name, total, 0
        self.state = JobState.RUNNING
        self.results: list[dict[str, Any]] | None = None
        self.ended = math.inf
        self.scope = anyio.CancelScope()

    def body(self) -> dict[str, Any]:
        """What `GET /jobs/{id}` says."""
        return {
            "id": self.id,
            "state": self.state.value,
            "done": self.done,
            "total": self.total,
            "results": self.results,
        }


class RewardService:
    """A scorer with slots."""

    def __init__(self, scorer: Scorer, settings: ServeSettings) -> None:
        self.scorer, self.settings = scorer, settings
        own = getattr(scorer, "fingerprint", None)
        self.fingerprint = fingerprint(scorer) if isinstance(own, str) else ""
        self._slots = anyio.Semaphore(settings.concurrency)
        self._waiting = 0
        self._jobs: dict[str, Work] = {}
        self.group: TaskGroup | None = None
        """Where jobs run; set while the server is up."""

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """One task's rewards, when a slot is free."""
        self._admit(1)
        try:
            return await self._score(task, responses)
        finally:
            self._waiting -= 1

    async def batch(self, items: Sequence[Raw]) -> list[dict[str, Any]]:
        """The result of each item, in order: its rewards, or the error of this item alone."""
        self._admit(len(items))
        return await self._score_all(items, None)

    def begin(self, items: Sequence[Raw]) -> Work:
        """Start a job and return at once."""
        if self.group is None:
            raise Busy("the server takes no jobs now; come back later.")
        self._forget()
        if len(self._jobs) >= self.settings.max_jobs:
            raise Busy(f"{len(self._jobs)} jobs are kept already; delete some (DELETE /jobs/ID).")
        self._admit(len(items))
        work = Work(secrets.token_urlsafe(16), len(items))
        self._jobs[work.id] = work
        self.group.start_soon(self._run, work, items)
        return work

    def job(self, name: str) -> Work | None:
        """A job by its id."""
        self._forget()
        return self._jobs.get(name)

    def cancel(self, work: Work) -> None:
        """Stop a job and forget it."""
        work.scope.cancel()
        self._jobs.pop(work.id, None)

    def _admit(self, items: int) -> None:
        """Count tasks in, or refuse work that would wait too long."""
        most = self.settings.max_items
        if items > most:
            raise UserError(
                f"items has {items} entries; expected at most {most}. Send several batches."
            )
        if self._waiting and self._waiting + items > self.settings.waiting:
            raise Busy(f"{self._waiting} tasks are waiting already; come back later.")
        self._waiting += items

    async def _score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        most = self.settings.max_responses
        if len(responses) > most:
            raise UserError(
                f"task {task.id} has {len(responses)} responses; expected at most {most}."
            )
        async with self._slots:
            deadline_s = self.settings.deadline_s
            return await checked(self.scorer, task, responses, deadline_s=deadline_s)

    async def _score_all(self, items: Sequence[Raw], work: Work | None) -> list[dict[str, Any]]:
        left = len(items)

        async def one(item: Raw) -> dict[str, Any]:
            nonlocal left
            try:
                return await self._result(item)
            finally:
                left -= 1
                self._waiting -= 1
                if work is not None:
                    work.done += 1

        try:
            calls = [partial(one, item) for item in items]
            return await gather(calls, limit=self.settings.concurrency)
        finally:
            self._waiting -= left

    async def _result(self, item: Raw) -> dict[str, Any]:
        try:
            rewards = await self._score(*read(item, ScoreBody, "the item").parts())
        except BurnishError as error:
            return {"error": str(error), "kind": problem_kind(error)}
        except Exception:  # boundary: a bug costs the item it met; the log has the traceback
            logger.exception("scoring an item failed")
            return {"error": "the server failed; its log says why.", "kind": "server"}
        return {"rewards": [reward_body(reward) for reward in rewards]}

    async def _run(self, work: Work, items: Sequence[Raw]) -> None:
        with work.scope:
            work.results = await self._score_all(items, work)
        is_done = work.results is not None
        work.state = JobState.DONE if is_done else JobState.CANCELLED
        work.ended = time.monotonic()

    def _forget(self) -> None:
        oldest = time.monotonic() - self.settings.keep_s
        for name in [name for name, work in self._jobs.items() if work.ended < oldest]:
            del self._jobs[name]


def problem_kind(error: BaseException) -> str:
    """Who has to act: user, reward (the scorer broke its contract), busy or server."""
    if isinstance(error, UserError):
        return "user"
    if isinstance(error, Busy):
        return "busy"
    return "reward" if isinstance(error, RewardError) else "server"
