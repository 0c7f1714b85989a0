"""Many calls to slow and unreliable servers; the only place that limits and retries.

A worker is `async (job) -> Answer`. It raises a `BoundaryError` (most of all the ones of
`burnish.lm.failures`), `TimeoutError` or `ConnectionError` when the world outside fails; that
becomes a status of this job alone. Any other exception is a bug and ends the run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cached_property
from typing import NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from burnish.errors import UserError
from burnish.lm.failures import EXPECTED, CallFailed, TimedOut, classify, unwrapped_errors
from burnish.lm.jobs import (
    Answer,
    Call,
    Clock,
    EndpointLimiter,
    Job,
    Limits,
    RetryBudget,
    Totals,
    backoff_s,
)
from burnish.seeds import Seeds

T = TypeVar("T")
Worker = Callable[[Job], Awaitable[Answer[T]]]

logger = logging.getLogger(__name__)


class _Outer(NamedTuple):
    """What encloses the current task: limiters whose slots it holds, and whether someone retries."""

    limiters: frozenset[int] = frozenset()
    retries: bool = False


_outer: ContextVar[_Outer] = ContextVar("burnish_request_pool")


class RequestPool:
    """Bounded concurrency, rates, deadlines, one retry budget and hedging."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.totals = Totals()
        self._seeds = Seeds(seed)
        self._clock = clock or Clock()
        self._budget = RetryBudget(self.limits.retry_share, self.limits.retry_floor)

    async def call(self, job: Job, worker: Worker[T]) -> T:
        """Do one job under the limits; raises what finally went wrong."""
        most = self.limits.tokens_per_minute
        if most is not None and job.tokens > most:
            raise UserError(
                f"job '{job.id}': {job.tokens} tokens never fit tokens_per_minute={most:g}; raise it"
            )
        call = Call(job, self._clock.now())
        with unwrapped_errors(), self._clock.limit(self.limits.batch_deadline_s):
            return (await self._work(call, worker)).value
        self.totals.failed += 1
        raise TimedOut(
            f"{job.id}: batch deadline of {self.limits.batch_deadline_s:g} s (batch_deadline_s) "
            f"passed while {call.label}{call.last_failure}"
        )

    @cached_property
    def _limiter(self) -> EndpointLimiter:
        return EndpointLimiter(self.limits, self._clock)

    async def _work(self, call: Call, worker: Worker[T]) -> Answer[T]:
        limiter = self._limiter
        outer = _outer.get(_Outer())
        if id(limiter) in outer.limiters:
            raise UserError(
                f"job '{call.job.id}' calls its own pool: with every slot held by a caller none would "
                "be left; use a second RequestPool inside"
            )
        try:
            async with limiter.slot(call):
                await limiter.turn(call)
                self._budget.started += 1
                call.started = self._clock.now()
                with self._clock.limit(limiter.limits.deadline_s):
                    answer = await self._attempts(call, worker, limiter, outer)
                    self.totals.ok += 1
                    self.totals.prompt_tokens += answer.prompt_tokens
                    self.totals.completion_tokens += answer.completion_tokens
                    self.totals.cost_usd += answer.cost_usd
                    return answer
                raise TimedOut(
                    f"{call.job.id}: deadline of {limiter.limits.deadline_s:g} s (deadline_s) passed "
                    f"while {call.label}{call.last_failure}"
                )
        except EXPECTED as error:
            self.totals.failed += 1
            if isinstance(error, CallFailed):
                error.attempts = call.attempts
            raise

    async def _attempts(
        self, call: Call, worker: Worker[T], limiter: EndpointLimiter, outer: _Outer
    ) -> Answer[T]:
        token = _outer.set(
            _Outer(outer.limiters | {id(limiter)}, outer.retries or limiter.limits.retries > 0)
        )
        try:
            while True:
                try:
                    return await self._hedged(call, worker, limiter, hedge=not outer.retries)
                except EXPECTED as error:
                    wait_s = self._wait_before_retry(call, error, limiter, outer)
                    call.failed_with = error
                    logger.info("job %s: %s; next try in %.2f s", call.job.id, error, wait_s)
                    call.label = f"backing off after attempt {call.attempts}"
                    await self._clock.sleep(wait_s)
                    await limiter.turn(call)
        finally:
            _outer.reset(token)

    def _wait_before_retry(
        self, call: Call, error: BaseException, limiter: EndpointLimiter, outer: _Outer
    ) -> float:
        """Seconds until the next attempt; raises `error`, with the reason, where none is due."""
        limits, now = limiter.limits, self._clock.now()
        failure = classify(error)
        rng = self._seeds.rng("backoff", call.job.id, call.attempts)
        wait_s = backoff_s(
            call.attempts, base_s=limits.backoff_base_s, cap_s=limits.backoff_cap_s, rng=rng
        )
        if failure.after_s is not None:
            wait_s += failure.after_s
            # One job's Retry-After is news for the endpoint; a hostile value costs one deadline.
            limiter.pace.pause(now, now + min(failure.after_s, limits.deadline_s))
        left_s = call.started + limits.deadline_s - now
        if not failure.retry or outer.retries:
            raise error
        if call.attempts > limits.retries:
            reason = f"gave up after {call.attempts} attempts (retries={limits.retries})"
        elif wait_s >= left_s:
            reason = (
                f"gave up after {call.attempts} attempts: the next would be due in {wait_s:.1f} s "
                f"and {left_s:.1f} s are left of deadline_s={limits.deadline_s:g}"
            )
        elif not self._budget.take():
            reason = (
                f"gave up after {call.attempts} attempts: the pool's retry budget is spent "
                f"({self._budget.spent} for {self._budget.started} jobs, "
                f"retry_share={self.limits.retry_share:g})"
            )
        else:
            return wait_s
        if isinstance(error, CallFailed):
            error.gave_up = reason
        raise error

    async def _hedged(
        self, call: Call, worker: Worker[T], limiter: EndpointLimiter, *, hedge: bool
    ) -> Answer[T]:
        """One attempt, with a second copy on the way if it is slow; the first answer wins."""
        after_s = limiter.limits.hedge_after_s
        if after_s is None or not hedge:
            return await self._attempt(call, worker, limiter)
        answers: list[Answer[T]] = []
        errors: list[Exception] = []
        copies = 1

        async def copy(group: TaskGroup) -> None:
            try:
                answers.append(await self._attempt(call, worker, limiter))
            except EXPECTED as error:
                errors.append(error)
            if answers or len(errors) == copies:
                group.cancel_scope.cancel()

        async def second(group: TaskGroup) -> None:
            nonlocal copies
            await self._clock.sleep(after_s)
            async with limiter.slot(call):
                if call.attempts > limiter.limits.retries or not self._budget.take():
                    return
                await limiter.turn(call)
                copies += 1
                self.totals.hedges += 1
                await copy(group)

        async with anyio.create_task_group() as group:
            group.start_soon(copy, group)
            group.start_soon(second, group)
        if not answers:
            raise errors[0]
        return answers[0]

    async def _attempt(self, call: Call, worker: Worker[T], limiter: EndpointLimiter) -> Answer[T]:
        call.attempts += 1
        self.totals.attempts += 1
        call.label = f"running attempt {call.attempts}"
        place = call.place
        with self._clock.limit(limiter.limits.attempt_s):
            answer = await worker(call.job)
            if place is not None:
                limiter.pace.settle(place, answer.tokens or call.job.tokens)
            return answer
        raise TimedOut(
            f"{call.job.id}: no answer within {limiter.limits.attempt_s:g} s (attempt_s)"
        )
