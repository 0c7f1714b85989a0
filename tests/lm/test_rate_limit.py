"""Rates, back-off, budgets and Retry-After as pure bookkeeping."""

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from burnish.errors import BoundaryError, JudgeError
from burnish.lm import failures
from burnish.lm.jobs import Pace, RetryBudget, backoff_s
from burnish.records import Status

arrivals = st.lists(st.tuples(st.floats(0, 90), st.integers(0, 50)), max_size=60)


@given(arrivals, st.integers(1, 8), st.integers(50, 200))
def test_no_minute_holds_more_than_the_limits(arrivals, requests, tokens):
    pace, now, places = Pace(requests, tokens), 0.0, []
    for gap, size in arrivals:
        now += gap
        places.append(pace.reserve(now, size))
        assert places[-1].start >= now
    starts = [place.start for place in places]
    assert starts == sorted(starts)
    for place in places:
        minute = [p for p in places if place.start <= p.start < place.start + 60 - 1e-6]
        assert len(minute) <= requests
        assert sum(p.tokens for p in minute) <= tokens


@given(arrivals)
def test_without_limits_nothing_waits(arrivals):
    pace, now = Pace(None, None), 0.0
    for gap, size in arrivals:
        now += gap
        assert pace.reserve(now, size).start == now


def test_worked_rate_of_three_a_minute():
    pace = Pace(3, None)
    starts = [pace.reserve(now, 0).start for now in (0.0, 1.0, 2.0, 3.0, 4.0, 130.0)]
    assert starts == [0.0, 1.0, 2.0, 60.0, 61.0, 130.0]


def test_real_token_counts_replace_the_estimate():
    pace = Pace(None, 100)
    first = pace.reserve(0.0, 100)
    assert pace.reserve(1.0, 50).start == 60.0
    pace = Pace(None, 100)
    first = pace.reserve(0.0, 100)
    pace.settle(first, 40)
    assert pace.reserve(1.0, 50).start == 1.0


@given(arrivals, st.integers(1, 8), st.sets(st.integers(0, 59)), st.floats(0, 200))
def test_pauses_keep_order_limits_and_quiet(arrivals, requests, pauses, length):
    pace, now, places, quiet = Pace(requests, None), 0.0, [], []
    for number, (gap, size) in enumerate(arrivals):
        now += gap
        places.append(pace.reserve(now, size))
        if number in pauses:
            pace.pause(now, now + length)
            quiet.append((now, now + length))
    starts = [place.start for place in places]
    assert starts == sorted(starts)
    for start in starts:
        minute = [s for s in starts if start <= s < start + 60 - 1e-6]
        assert len(minute) <= requests
        assert not any(begin < start < end for begin, end in quiet)


def test_a_pause_moves_those_who_wait_and_a_shorter_one_changes_nothing():
    pace = Pace(1, None)
    first, second, third = [pace.reserve(now, 0) for now in (0.0, 1.0, 2.0)]
    assert [p.start for p in (first, second, third)] == [0.0, 60.0, 120.0]
    pace.pause(30.0, 90.0)
    assert [p.start for p in (first, second, third)] == [0.0, 90.0, 150.0]
    pace.pause(31.0, 80.0)
    assert pace.reserve(40.0, 0).start == 210.0


def test_backoff_doubles_with_jitter_up_to_its_cap():
    rng = random.Random(1)
    waits = [backoff_s(k, base_s=1.0, cap_s=10.0, rng=rng) for k in range(1, 9)]
    for wait, full in zip(waits, [1, 2, 4, 8, 10, 10, 10, 10], strict=True):
        assert full / 2 <= wait <= full
    assert len(set(waits)) == len(waits)
    assert backoff_s(10_000, base_s=1.0, cap_s=10.0, rng=rng) <= 10.0


def test_the_pool_wide_budget_grows_with_the_jobs():
    budget = RetryBudget(share=0.5, floor=1)
    assert [budget.take(), budget.take()] == [True, False]
    budget.started = 4
    assert [budget.take(), budget.take(), budget.take()] == [True, True, False]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-4", 0.0),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
    ],
)
def test_retry_after_as_seconds_or_date(header, seconds):
    now = datetime(2015, 10, 21, 7, 28, 0, tzinfo=UTC)
    assert failures.retry_after_s(header, now) == seconds


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (failures.RateLimited("x"), Status.INFRA_ERROR, True),
        (failures.ServerFailed("x"), Status.INFRA_ERROR, True),
        (failures.TimedOut("x"), Status.TIMEOUT, True),
        (TimeoutError(), Status.TIMEOUT, True),
        (failures.Unreachable("x"), Status.INFRA_ERROR, True),
        (ConnectionResetError(), Status.INFRA_ERROR, True),
        (failures.Rejected("x"), Status.INFRA_ERROR, False),
        (failures.BadReply("x"), Status.INFRA_ERROR, False),
        (failures.ForeignReply("x"), Status.INFRA_ERROR, True),
        (failures.Refused("x"), Status.REFUSED, False),
        (failures.WrongModel("x"), Status.INFRA_ERROR, False),
        (failures.Unsupported("x"), Status.INFRA_ERROR, False),
        (JudgeError("x"), Status.INFRA_ERROR, False),
        (BoundaryError("x"), Status.INFRA_ERROR, False),
    ],
)
def test_what_is_retried(error, status, retry):
    failure = failures.classify(error)
    assert (failure.status, failure.retry) == (status, retry)
