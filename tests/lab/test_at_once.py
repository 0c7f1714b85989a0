"""Runs of a study side by side give what they give one by one."""

from __future__ import annotations

import operator

import pytest
from lab.at_once import at_once

from burnish.lm.hardware import GPU_SHARE


def test_two_at_a_time_give_what_one_by_one_gives(monkeypatch):
    monkeypatch.setenv(GPU_SHARE, "0.5")
    calls = [(1, 2), (3, 4), (5, 6)]
    alone = list(at_once(operator.add, calls, 1))
    assert alone == [3, 7, 11]
    assert sorted(at_once(operator.add, calls, 2)) == alone


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_is_not_passed_over(jobs):
    found: list[float] = []
    with pytest.raises(ZeroDivisionError):
        found.extend(at_once(operator.truediv, [(4, 2), (1, 0), (6, 2)], jobs))
    # Beside others, what they give is not lost.
    assert sorted(found) == ([2.0] if jobs == 1 else [2.0, 3.0])
