"""Intervals against worked numbers."""

import pytest

from burnish.bench import mean_estimate, paired_difference, wilson
from burnish.intervals import interval_text


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


def test_an_interval_that_cannot_be_one_is_named():
    """Six rewards of exactly +1 have no spread; their bootstrap claims certainty."""
    few = paired_difference([-1.0] * 6, [0.0] * 6)
    assert few[:3] == (1.0, 1.0, 1.0)
    assert (few.doubt, str(few)) == ("too few to say", "1.000 (too few to say)")
    many = mean_estimate([0.5] * 40)
    assert (many.doubt, str(many)) == ("all equal: no interval", "0.500 (all equal: no interval)")
    one = mean_estimate([1.0])
    assert (one.doubt, str(one)) == ("too few to say", "1.000 (too few to say)")


def test_enough_prompts_are_written_with_their_interval():
    assert str(mean_estimate([1.0] * 10)) == "1.000 [0.722, 1.000]"
    assert mean_estimate([1.0] * 10).doubt == ""
    assert str(mean_estimate([1.0] * 9)).endswith("] (too few to say)")
    change = paired_difference([0.0] * 12, [1.0] * 12)
    assert interval_text(*change, signed=True).startswith("+1.000 [+0.")
