"""The pool under a clock that does not wait, and under the real one where speed is the point."""

import random
from importlib.util import find_spec
from itertools import pairwise

import anyio
import pytest
from fake_clock import FakeClock, run_jobs

from burnish.errors import ModelError, UserError
from burnish.lm.failures import BadReply, RateLimited, ServerFailed, TimedOut, Unreachable
from burnish.lm.jobs import Answer, Job, Limits
from burnish.lm.request_pool import RequestPool
from burnish.records import Status

BACKENDS = ["asyncio", *(["trio"] if find_spec("trio") else [])]


def jobs(count, **more):
    return [Job(f"job{i}", **more) for i in range(count)]


def number(job):
    return int(job.id.removeprefix("job"))


def fails_first(times, error, clock=None, log=None):
    """A worker that raises `error()` on the first `times` attempts of each job."""
    seen = {}

    async def worker(job):
        seen[job.id] = seen.get(job.id, 0) + 1
        if log is not None:
            log.append((job.id, clock.now()))
        if seen[job.id] <= times:
            raise error()
        return Answer(number(job))

    return worker


@pytest.mark.parametrize("backend", BACKENDS)
def test_outcomes_keep_the_order_of_the_jobs(backend):
    pool = RequestPool(Limits(concurrency=8))

    async def worker(job):
        await anyio.sleep(random.Random(number(job)).random() / 50)
        return Answer(number(job) * 2, prompt_tokens=3, completion_tokens=1, cost_usd=0.5)

    outcomes = anyio.run(run_jobs, pool, jobs(40), worker, backend=backend)
    assert [o.value for o in outcomes] == [2 * i for i in range(40)]
    assert pool.totals.attempts == 40
    assert (pool.totals.ok, pool.totals.prompt_tokens, pool.totals.cost_usd) == (40, 120, 20.0)


def test_never_more_at_once_than_allowed():
    clock, running = FakeClock(), []
    pool = RequestPool(Limits(concurrency=3), clock=clock)
    peak = []

    async def worker(job):
        running.append(job)
        peak.append(len(running))
        await clock.sleep(1.0)
        running.remove(job)
        return Answer(None)

    outcomes = clock.run(lambda: run_jobs(pool, jobs(21), worker))
    assert all(o.status is Status.OK for o in outcomes)
    assert (max(peak), clock.now()) == (3, 7.0)


def test_requests_and_tokens_per_minute_are_kept():
    clock, starts = FakeClock(), []
    pool = RequestPool(
        Limits(concurrency=50, requests_per_minute=10, tokens_per_minute=400), clock=clock
    )

    async def worker(job):
        starts.append(clock.now())
        return Answer(None, completion_tokens=job.tokens)

    outcomes = clock.run(lambda: run_jobs(pool, jobs(25, tokens=50), worker))
    assert all(o.status is Status.OK for o in outcomes)
    assert starts == [0.0] * 8 + [60.0] * 8 + [120.0] * 8 + [180.0]


def test_tokens_that_were_not_used_are_given_back():
    clock, starts = FakeClock(), []
    pool = RequestPool(Limits(concurrency=1, tokens_per_minute=100), clock=clock)

    async def worker(job):
        starts.append(clock.now())
        await clock.sleep(1.0)
        return Answer(None, completion_tokens=10)

    clock.run(lambda: run_jobs(pool, jobs(5, tokens=60), worker))
    assert starts == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("error", [ServerFailed, RateLimited, Unreachable])
def test_retryable_errors_are_tried_again(error):
    clock = FakeClock()
    pool = RequestPool(Limits(retries=2), clock=clock)
    outcome = clock.run(lambda: run_jobs(pool, jobs(1), fails_first(2, lambda: error("bad"))))[0]
    assert (outcome.status, outcome.value, pool.totals.attempts) == (Status.OK, 0, 3)


@pytest.mark.parametrize("error", [BadReply("not JSON"), ModelError("no such model")])
def test_other_errors_are_not(error):
    clock = FakeClock()
    pool = RequestPool(clock=clock)

    async def worker(job):
        raise error

    outcome = clock.run(lambda: run_jobs(pool, jobs(1), worker))[0]
    assert (outcome.value, outcome.attempts, outcome.error) == (None, 1, str(error))
    assert outcome.status is not Status.OK
    assert clock.now() == 0.0


def test_retry_after_is_honoured_by_the_whole_endpoint():
    clock, log = FakeClock(), []
    pool = RequestPool(Limits(concurrency=2, backoff_base_s=1.0), clock=clock)
    first_only = fails_first(1, lambda: RateLimited("429", after_s=20.0), clock, log)

    async def worker(job):
        if job.id == "job0":
            return await first_only(job)
        log.append((job.id, clock.now()))
        return Answer(None)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(pool.call, Job("job0"), worker)
            await clock.sleep(5.0)
            group.start_soon(pool.call, Job("job1"), worker)

    clock.run(main)
    assert log[:2] == [("job0", 0.0), ("job1", 20.0)]
    assert log[2][0] == "job0"
    assert 20.5 <= log[2][1] <= 21.0


def test_those_who_wait_for_the_rate_line_up_behind_a_pause():
    clock, log = FakeClock(), []
    pool = RequestPool(Limits(concurrency=9, requests_per_minute=1), clock=clock)
    limited = [RateLimited("429", after_s=70.0)]

    async def worker(job):
        log.append((job.id, clock.now()))
        if limited:
            await clock.sleep(30.0)
            raise limited.pop()
        return Answer(None)

    outcomes = clock.run(lambda: run_jobs(pool, jobs(3), worker))
    assert all(o.status is Status.OK for o in outcomes)
    assert log == [("job0", 0.0), ("job1", 100.0), ("job2", 160.0), ("job0", 220.0)]


def test_a_retry_that_cannot_come_in_time_is_not_waited_for():
    clock = FakeClock()
    pool = RequestPool(Limits(deadline_s=30.0), clock=clock)
    worker = fails_first(9, lambda: RateLimited("429", after_s=3600.0))
    outcome = clock.run(lambda: run_jobs(pool, jobs(1), worker))[0]
    assert (outcome.status, outcome.attempts) == (Status.INFRA_ERROR, 1)
    assert "30.0 s are left of deadline_s=30" in outcome.error
    assert clock.now() == 0.0


def test_one_budget_a_job_and_one_for_the_pool():
    clock, log = FakeClock(), []
    limits = Limits(concurrency=1, retries=3, retry_share=0.1, retry_floor=5)
    pool = RequestPool(limits, clock=clock)
    always = fails_first(99, lambda: ServerFailed("HTTP 500"), clock, log)
    outcomes = clock.run(lambda: run_jobs(pool, jobs(100), always))
    assert all(o.status is Status.INFRA_ERROR for o in outcomes)
    assert max(o.attempts for o in outcomes) <= 4
    assert len(log) == pool.totals.attempts == 100 + 5 + 10
    assert outcomes[0].error == "HTTP 500; gave up after 4 attempts (retries=3)"
    assert "the pool's retry budget is spent (15 for" in outcomes[-1].error


def test_nested_pools_do_not_multiply_their_retries():
    clock, log = FakeClock(), []
    inner = RequestPool(Limits(retries=3, hedge_after_s=0.5), clock=clock)
    always = fails_first(99, lambda: ServerFailed("HTTP 500"), clock, log)

    async def worker(job):
        return Answer(await inner.call(job, always))

    outer = RequestPool(Limits(retries=3), clock=clock)
    assert clock.run(lambda: run_jobs(outer, jobs(1), worker))[0].attempts == 4
    assert len(log) == 4
    log.clear()
    without = RequestPool(Limits(retries=0), clock=clock)
    assert clock.run(lambda: run_jobs(without, jobs(1), worker))[0].attempts == 1
    assert len(log) == 4


def test_a_job_that_calls_its_own_pool_is_refused_instead_of_hanging():
    pool = RequestPool(Limits(concurrency=1, batch_deadline_s=120.0))

    async def worker(job):
        return Answer(await pool.call(Job("inner"), worker))

    with pytest.raises(UserError, match="calls its own pool"):
        anyio.run(pool.call, Job("outer"), worker)


def test_attempt_and_job_deadlines_name_themselves():
    clock = FakeClock()

    async def never(job):
        await clock.sleep(10_000)

    def run(**limits):
        return clock.run(
            lambda: run_jobs(RequestPool(Limits(**limits), clock=clock), jobs(2), never)
        )

    slow = run(attempt_s=5.0, retries=1)[0]
    assert (slow.status, slow.attempts) == (Status.TIMEOUT, 2)
    assert "no answer within 5 s (attempt_s); gave up after 2 attempts" in slow.error
    stuck = run(deadline_s=8.0)[0]
    assert (stuck.status, stuck.attempts) == (Status.TIMEOUT, 1)
    assert stuck.error == "job0: deadline of 8 s (deadline_s) passed while running attempt 1"


def test_a_single_call_does_not_wait_for_a_slot_for_ever():
    clock = FakeClock()
    pool = RequestPool(Limits(concurrency=1, batch_deadline_s=5.0, deadline_s=100.0), clock=clock)
    errors = []

    async def never(job):
        await clock.sleep(10_000)

    async def one(name):
        try:
            await pool.call(Job(name), never)
        except TimedOut as error:
            errors.append(str(error))

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(one, "a")
            group.start_soon(one, "b")

    clock.run(main)
    assert sorted(errors) == [
        "a: batch deadline of 5 s (batch_deadline_s) passed while running attempt 1",
        "b: batch deadline of 5 s (batch_deadline_s) passed while waiting for one of 1 slots",
    ]


def test_hedging_cuts_the_tail_and_cancels_the_loser():
    def tail(hedge_after_s):
        clock, cancelled, calls = FakeClock(), [], {}

        async def worker(job):
            calls[job.id] = calls.get(job.id, 0) + 1
            slow = number(job) % 10 == 0 and calls[job.id] == 1
            try:
                await clock.sleep(100.0 if slow else 1.0)
            except anyio.get_cancelled_exc_class():
                cancelled.append(job.id)
                raise
            return Answer(calls[job.id])

        pool = RequestPool(Limits(concurrency=50, hedge_after_s=hedge_after_s), clock=clock)
        outcomes = clock.run(lambda: run_jobs(pool, jobs(40), worker))
        assert all(o.status is Status.OK for o in outcomes)
        return clock.now(), cancelled, pool.totals, list(calls.values())

    seconds, cancelled, totals, attempts = tail(None)
    assert (seconds, cancelled, totals.hedges, set(attempts)) == (100.0, [], 0, {1})
    seconds, cancelled, totals, attempts = tail(3.0)
    assert (seconds, totals.hedges) == (4.0, 4)
    assert sorted(cancelled) == ["job0", "job10", "job20", "job30"]
    assert attempts.count(2) == 4


def test_a_hedge_spends_the_same_budget_as_a_retry():
    clock, log = FakeClock(), []

    async def worker(job):
        log.append(clock.now())
        await clock.sleep(10.0)
        raise ServerFailed("HTTP 500")

    pool = RequestPool(Limits(retries=2, hedge_after_s=1.0), clock=clock)
    outcome = clock.run(lambda: run_jobs(pool, jobs(1), worker))[0]
    assert outcome.attempts == len(log) == 3
    assert pool.totals.hedges == 1


def test_a_failure_waits_for_a_hedge_that_runs_and_for_no_other():
    def first_fails_after(seconds):
        clock, calls = FakeClock(), []

        async def worker(job):
            calls.append(clock.now())
            await clock.sleep(seconds if len(calls) == 1 else 6.0)
            if len(calls) == 1 or clock.now() == seconds:
                raise ServerFailed("HTTP 500")
            return Answer(None)

        pool = RequestPool(Limits(hedge_after_s=4.0, backoff_base_s=1.0), clock=clock)
        assert clock.run(lambda: run_jobs(pool, jobs(1), worker))[0].status is Status.OK
        return calls, pool.totals.hedges, clock.now()

    assert first_fails_after(7.0) == ([0.0, 4.0], 1, 10.0)
    calls, _, _ = first_fails_after(2.0)
    assert calls[0] == 0.0
    assert 2.5 <= calls[1] <= 3.0


def test_a_bug_in_a_worker_surfaces_as_itself():
    async def worker(job):
        raise KeyError("typo")

    for limits in (Limits(), Limits(hedge_after_s=1.0)):
        with pytest.raises(KeyError, match="typo"):
            anyio.run(run_jobs, RequestPool(limits), jobs(3), worker)


def test_the_same_seed_backs_off_alike_whatever_the_concurrency():
    def waits(concurrency, seed):
        clock, log = FakeClock(), []
        pool = RequestPool(Limits(concurrency=concurrency), clock=clock, seed=seed)
        worker = fails_first(2, lambda: ServerFailed("HTTP 500"), clock, log)
        clock.run(lambda: run_jobs(pool, jobs(6), worker))
        times = {}
        for job, at in log:
            times.setdefault(job, []).append(at)
        return {job: [round(b - a, 6) for a, b in pairwise(t)] for job, t in times.items()}

    assert waits(1, seed=1) == waits(6, seed=1)
    assert waits(1, seed=1) != waits(1, seed=2)


def test_one_pool_serves_several_event_loops():
    pool = RequestPool(Limits(concurrency=2))

    async def worker(job):
        await anyio.sleep(0.001)
        return Answer(number(job))

    for _ in range(3):
        outcomes = anyio.run(run_jobs, pool, jobs(6), worker)
        assert [o.value for o in outcomes] == list(range(6))
