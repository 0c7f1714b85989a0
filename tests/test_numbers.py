"""The arithmetic that rooms share."""

import math

import pytest

from burnish.arguments import as_whole
from burnish.numbers import plain, sigmoid, solve


def test_sigmoid_is_a_probability_everywhere():
    assert sigmoid(0.0) == 0.5
    assert sigmoid(math.log(3)) == pytest.approx(0.75)
    assert (sigmoid(-1000.0), sigmoid(1000.0)) == (0.0, 1.0)


def test_equations_are_solved_also_where_the_first_pivot_is_zero():
    assert solve([[2.0, 1.0], [1.0, 3.0]], [3.0, 5.0]) == pytest.approx([0.8, 1.4])
    assert solve([[0.0, 1.0], [2.0, 0.0]], [3.0, 4.0]) == [2.0, 3.0]
    assert solve([], []) == []


def test_plain_leaves_lists_alone():
    assert plain([1, None]) == [1, None]
    assert plain("text") == "text"


def test_a_seed_of_64_bits_stays_exact():
    for seed in (2**53 + 1, 2**64 - 1, -(2**62) - 1):
        assert as_whole("seed", seed) == seed
    assert as_whole("seed", 3.0) == 3
