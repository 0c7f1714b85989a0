"""Best-of-N by a reward, judged by a gold score."""

import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given, strategies as st
from lab.dir.best_of_n import best_of_n_curve


def test_a_worked_case():
    one, two, four = best_of_n_curve([[1, 2, 3, 4]], [[0, 1, 2, -3]])
    assert (one.n, one.kl, one.gold.value) == (1, 0.0, 0.0)
    # Six pairs: the best is answer 2 once, 3 twice, 4 three times.
    assert two.gold.value == pytest.approx((1 * 1 + 2 * 2 - 3 * 3) / 6)
    assert two.reward.value == pytest.approx((2 + 6 + 12) / 6)
    assert two.kl == pytest.approx(math.log(2) - 0.5)
    assert (four.n, four.gold.value, four.reward.value) == (4, -3.0, 4.0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=6),
    st.integers(1, 6),
)
def test_equals_the_mean_over_all_draws(answers, n):
    n = min(n, len(answers))
    wanted = []
    for drawn in itertools.combinations(answers, n):
        best = max(reward for reward, _ in drawn)
        wanted.append(fmean(gold for reward, gold in drawn if reward == best))
    found = best_of_n_curve([[a for a, _ in answers]], [[b for _, b in answers]], [n])
    assert found[0].gold.value == pytest.approx(fmean(wanted), abs=1e-12)


def test_a_random_reward_gains_nothing_and_the_gold_itself_only_rises():
    gold = [[float(i * i % 11) for i in range(8)], [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]]
    flat = best_of_n_curve([[0.0] * 8] * 2, gold)
    assert {round(point.gold.value, 9) for point in flat} == {round(flat[0].gold.value, 9)}
    rising = [point.gold.value for point in best_of_n_curve(gold, gold)]
    assert rising == sorted(rising)


def test_a_hundred_thousand_answers_take_a_blink_and_stay_exact():
    count = 100_000
    rewards = [float((i * 7919) % count) for i in range(count)]
    flat = [0.0] * count
    for points in (best_of_n_curve([rewards], [rewards]), best_of_n_curve([flat], [rewards])):
        assert points[0].gold.value == pytest.approx((count - 1) / 2)
    # The expected largest of n of 0 .. N - 1 is n (N + 1) / (n + 1) - 1.
    for point in best_of_n_curve([rewards], [rewards]):
        assert point.reward.value == pytest.approx(point.n * (count + 1) / (point.n + 1) - 1)
