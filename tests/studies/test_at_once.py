"""Runs of a study side by side give what they give one by one."""

from __future__ import annotations

import operator

import pytest
from studies.at_once import at_once

from burnish.lm.hardware import GPU_SHARE


def test_two_at_a_time_give_what_one_by_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_SHARE, "0.5")
    calls = [(1, 2), (3, 4), (5, 6)]
    alone = list(at_once(operator.add, calls, 1))
    assert alone == [3, 7, 11]
    assert sorted(at_once(operator.add, calls, 2)) == alone


def test_a_run_that_fails_is_not_passed_over() -> None:
    with pytest.raises(ZeroDivisionError):
        list(at_once(operator.truediv, [(1, 0)], 1))
