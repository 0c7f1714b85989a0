import itertools

import pytest
from training_cases import finish, trainer

from burnish.store import RunStore
from burnish.training import events as pace_room
from burnish.training.events import HeldOut, Pace, StepDone, TimeLeft, Work, likely


@pytest.fixture
def clock(monkeypatch):
    """The time of day, which a test moves."""
    now = [0.0]
    monkeypatch.setattr(pace_room.time, "monotonic", lambda: now[0])
    return now


def told_after(clock, seconds, work_of):
    """What a run with these steps tells, by the number of steps done."""
    pace, told = Pace(), {}
    for done, took in enumerate(seconds, start=1):
        clock[0] += took
        pace.steps.append(took)
        if found := pace.tell(done, work_of(done)):
            told[done] = found
    return told


def test_quick_steps_are_told_of_after_three_and_a_slow_one_at_once(clock):
    assert list(told_after(clock, [1.0] * 20, lambda done: Work(20 - done))) == [3]
    slow = told_after(clock, [35.0] * 3, lambda done: Work(30 - done))
    assert list(slow) == [1]
    # The first step warms up: the others may take a quarter of it.
    assert str(slow[1]) == (
        "about 4.2 to 25 min for the 29 steps left, from the first step, which warms up"
    )
    short = told_after(clock, [35.0, 9.0, 9.0], lambda done: Work(5 - done))
    assert list(short) == [2]


def test_it_is_told_again_only_when_the_end_leaves_the_interval(clock):
    seconds = [10.0] * 10 + [30.0] * 10
    told = told_after(clock, seconds, lambda done: Work(100 - done))
    assert min(told) == 3
    again = [done for done in told if done > 3]
    assert again
    assert min(again) > 10, "ten equal steps bring no news"
    assert told[max(again)].high_s > told[3].high_s


def test_evaluations_and_checkpoints_count():
    steps = [4.0] * 9
    alone = Pace(steps=list(steps)).left(9, Work(10))
    both = Pace(steps=list(steps), evaluations=[60.0], saves=[6.0]).left(9, Work(10, 2, 1))
    assert both.low_s - alone.low_s == pytest.approx((2 * 60 + 6) / 1.5)
    assert both.high_s - alone.high_s == pytest.approx((2 * 60 + 6) * 1.5)
    assert "for the 10 steps and 2 evaluations left, from 9 steps" in str(both)


def test_an_interval_holds_its_measurements_and_narrows():
    assert likely([2.0]) == pytest.approx((2 / 1.5, 3.0))
    assert likely([9.0, 2.0, 2.0]) == pytest.approx((1.6, 2.5)), "the first one warms up"
    widths = [high / low for low, high in (likely([3.0] * n) for n in (1, 2, 4, 9))]
    assert all(a > b for a, b in itertools.pairwise(widths))
    low, high = likely([1.0] + [2.0] * 8 + [50.0])
    assert (low, high) == pytest.approx((2 / (1 + 0.5 / 9), 2 * (1 + 0.5 / 9))), "one outlier"


def test_a_run_tells_it_after_three_steps_and_stores_it(tmp_path):
    events = finish(trainer(tmp_path, {"evaluation": {"every": 2}}))
    order = [type(event) for event in events if isinstance(event, StepDone | TimeLeft)]
    assert order[:4] == [StepDone, StepDone, StepDone, TimeLeft]
    told = next(event for event in events if isinstance(event, TimeLeft))
    # Of six steps three are left; an evaluation is due after step 4, and the last one.
    assert told.work == Work(steps=3, evaluations=2, saves=1)
    assert told.unknown == 0, "the one before training was measured"
    assert sum(isinstance(event, HeldOut) for event in events) == 4
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        stored = store.events("time")
    assert stored[0].message == str(told)
    assert stored[0].data["low_s"] == told.low_s < told.high_s == stored[0].data["high_s"]
    assert stored[0].step == 3


def test_a_warm_start_is_told_of_apart_from_the_steps_behind_it(tmp_path):
    shown = {
        "stages": [{"name": "warm", "steps": 5, "train": {"kind": "sft", "batch": 2}}],
        "experts": {"field": "row"},
    }
    told = [e for e in finish(trainer(tmp_path, shown)) if isinstance(e, TimeLeft)]
    assert [(one.work.stage, one.work.later) for one in told[:2]] == [("warm", 6), ("", 0)]
    assert told[0].work.steps == 2
