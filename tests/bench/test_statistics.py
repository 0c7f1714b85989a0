"""Intervals against worked numbers."""

import pytest

from burnish.bench import mean_estimate, paired_difference, wilson


def test_wilson_by_hand():
    """8 of 10: centre (0.8 + z^2/20) / (1 + z^2/10), z = 1.96."""
    found = wilson(8, 10)
    assert found[:3] == pytest.approx((0.8, 0.490162, 0.943318), abs=1e-6)


def test_wilson_at_the_edges_is_exact_on_one_side():
    assert wilson(0, 25).low == 0.0
    assert wilson(25, 25).high == 1.0
    assert 0.1 < wilson(0, 25).high < 0.2


def test_paired_shares_by_newcombe():
    """Newcombe 1998, method 10: 36 right twice, 12 lost, 2 gained, 0 wrong twice of 50."""
    before = [1.0] * 48 + [0.0] * 2
    after = [1.0] * 36 + [0.0] * 12 + [1.0] * 2
    found = paired_difference(before, after)
    assert found.value == pytest.approx(-0.2)
    assert found.low < -0.2 < found.high < 0.0


def test_all_items_changing_alike_still_has_a_width():
    found = paired_difference([0.0] * 3, [1.0] * 3)
    assert found.value == 1.0
    assert found.low < 0.6
    none = paired_difference([1.0] * 4, [1.0] * 4)
    assert none.low < 0.0 < none.high


def test_swapping_the_sides_mirrors_the_interval():
    before, after = [0.0, 1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0, 1.0]
    there, back = paired_difference(before, after), paired_difference(after, before)
    assert there.low == pytest.approx(-back.high)
    assert there.high == pytest.approx(-back.low)


def test_graded_values_use_the_bootstrap_and_repeat():
    values = [0.1, 0.5, 0.9, 0.4, 0.7, 0.2]
    assert mean_estimate(values) == mean_estimate(values)
    assert mean_estimate(values).low < sum(values) / 6 < mean_estimate(values).high
