import math

import pytest
import torch
from hypothesis import given, strategies as st

from burnish.policy.brpo import brpo_advantages, skew_filter
from burnish.policy.grpo import grpo_advantage

NAN = math.nan
scores = st.lists(st.integers(-5, 5), min_size=1, max_size=9)


def outcomes_against(quality, reference):
    """An antisymmetric judge: +1, 0 or -1 by the order of true qualities."""
    return [float((q > quality[reference]) - (q < quality[reference])) for q in quality]


def test_one_group_by_hand():
    result = brpo_advantages([1, -1, 0, 1, 1], 2, 0.6)
    assert result.advantages.tolist() == [1, -1, 0, 1, 1]
    assert result.skew.item() == pytest.approx(2 / 5)
    assert result.keep.item() is True
    assert result.advantages.dtype == torch.float64
    assert result.skew.shape == result.keep.shape == ()


def test_many_groups_by_hand():
    table = torch.tensor([[0, 1, -1, 1], [1, 1, 0, 1], [-1, 0, -1, 1]], dtype=torch.float64)
    result = brpo_advantages(table, torch.tensor([0, 2, 1]), 0.6)
    assert result.skew.tolist() == [0.25, 0.75, 0.25]
    assert result.keep.tolist() == [True, False, True]
    assert result.advantages.tolist() == [[0, 1, -1, 1], [0, 0, 0, 0], [-1, 0, -1, 1]]


def test_what_stands_at_the_reference_is_ignored():
    for placeholder in (0.0, 1.0, -1.0, NAN):
        result = brpo_advantages([1.0, placeholder, -1.0], 1)
        assert result.advantages.tolist() == [1, 0, -1]
        assert result.skew.item() == 0


def test_of_sixteen_three_to_twelve_wins_are_kept():
    kept = [
        wins
        for wins in range(16)
        if brpo_advantages([0.0] + [1.0] * wins + [-1.0] * (15 - wins), 0).keep
    ]
    assert kept == list(range(3, 13))


def test_the_edge_itself_is_kept():
    assert brpo_advantages([0, 1, 1, 1, 0], 0, 0.6).keep  # 3 of 5 is 0.6 exactly
    thirds = [1 / 3] * 9 + [0.0] * 1  # adds up to 3 with an error of rounding
    assert brpo_advantages(thirds, None, 0.3).keep
    assert skew_filter(thirds, [0] * 10, 0.3).all()


def test_small_groups():
    alone = brpo_advantages([1.0], 0)
    assert (alone.advantages.tolist(), alone.skew.item()) == ([0.0], 0.0)
    pair = brpo_advantages([NAN, -1.0], 0)
    assert (pair.advantages.tolist(), pair.skew.item(), pair.keep.item()) == ([0, -1], 0.5, True)
    assert not brpo_advantages([0, 1, 1], 0).keep
    assert not brpo_advantages([-1, -1, 0], 2).keep


def test_a_comparison_without_verdict_is_no_loss():
    result = brpo_advantages([0, 1, NAN, -1, NAN], 0)
    assert result.advantages.tolist() == [0, 1, 0, -1, 0]
    assert result.skew.item() == 0
    outage = brpo_advantages([NAN] * 8, 3)
    assert outage.keep.item()
    assert outage.advantages.tolist() == [0] * 8


def test_several_references_have_no_place_of_their_own():
    result = brpo_advantages([0.5, -1.0, 0.0, 0.5], None)
    assert result.advantages.tolist() == [0.5, -1.0, 0.0, 0.5]


def test_centred_and_scaled_by_hand():
    # Without the reference: 1, 1, -1; mean 1/3, sample variance ((2/3)^2 * 2 + (4/3)^2) / 2 = 4/3.
    result = brpo_advantages([1, 0, 1, -1], 1, center=True)
    deviation = math.sqrt(4 / 3)
    expected = [2 / 3 / deviation, 0, 2 / 3 / deviation, -4 / 3 / deviation]
    assert result.advantages.tolist() == pytest.approx(expected, abs=1e-5)
    assert result.skew.item() == 0.25  # of the outcomes, before centring


def test_centred_is_what_group_normalisation_makes_of_the_outcomes():
    table = torch.tensor([[NAN, 1, -1, 0, 1, -1], [1, -1, 1, NAN, -1, -1]], dtype=torch.float64)
    result = brpo_advantages(table, [0, 3], 1.0, center=True)
    flat = grpo_advantage(table.reshape(-1), [0] * 6 + [1] * 6)
    torch.testing.assert_close(result.advantages.reshape(-1), flat, rtol=0, atol=0)


@given(scores)
def test_over_all_references_advantages_add_up_to_nothing(quality):
    rows = [brpo_advantages(outcomes_against(quality, r), r, 1.0) for r in range(len(quality))]
    table = torch.stack([row.advantages for row in rows])
    assert table.sum().item() == 0
    wins = torch.tensor([sum((a > b) - (a < b) for b in quality) for a in quality])
    torch.testing.assert_close(table.mean(0), wins / len(quality), check_dtype=False)
    means = table.mean(0).tolist()
    for a, mean_a in zip(quality, means, strict=True):
        for b, mean_b in zip(quality, means, strict=True):
            assert a <= b or mean_a > mean_b  # monotone in the true quality


@given(scores, st.data(), st.sampled_from([0.0, 0.3, 0.6, 1.0]))
def test_an_inverted_judge_flips_the_signs_and_drops_the_same_groups(quality, data, threshold):
    reference = data.draw(st.integers(0, len(quality) - 1))
    outcomes = outcomes_against(quality, reference)
    one = brpo_advantages(outcomes, reference, threshold)
    other = brpo_advantages([-x for x in outcomes], reference, threshold)
    assert torch.equal(one.advantages, -other.advantages)
    assert (one.keep, one.skew) == (other.keep, other.skew)
    assert set(one.advantages.tolist()) <= {-1.0, 0.0, 1.0}
    assert brpo_advantages(outcomes, reference, 1.0).keep
    if len(set(quality)) == len(quality) and one.keep:
        assert one.advantages.tolist().count(0.0) == 1


@given(scores, st.data())
def test_only_the_order_of_scores_counts(quality, data):
    reference = data.draw(st.integers(0, len(quality) - 1))
    stretched = [math.exp(q) + 3 for q in quality]
    one = brpo_advantages(outcomes_against(quality, reference), reference)
    other = brpo_advantages(outcomes_against(stretched, reference), reference)
    assert torch.equal(one.advantages, other.advantages)


@given(st.lists(scores, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_flat_filter_keeps_the_same_groups_in_any_order(groups, rng):
    rows, expected = [], []
    for number, quality in enumerate(groups):
        reference = rng.randrange(len(quality))
        outcomes = outcomes_against(quality, reference)
        keep = brpo_advantages(outcomes, reference, 0.6).keep.item()
        outcomes[reference] = NAN
        rows += [(value, f"group {number}", keep) for value in outcomes]
    rng.shuffle(rows)
    values, labels, expected = zip(*rows, strict=True)
    assert skew_filter(list(values), labels, 0.6).tolist() == list(expected)


def test_the_flat_filter_by_hand():
    # Group 0: |1 + 1 - 1| / 4 with its reference; group 1: |-1 - 1| / 3.
    outcomes = [1.0, NAN, -1.0, -1.0, 1.0, NAN, -1.0]
    groups = torch.tensor([0, 0, 1, 0, 0, 1, 1])
    keep = skew_filter(outcomes, groups, 0.6)
    assert keep.tolist() == [True, True, False, True, True, False, False]
    assert skew_filter(outcomes, groups, 0.2).tolist() == [False] * 7
    with pytest.raises(ValueError, match="groups: got shape"):
        skew_filter(outcomes, [0, 1], 0.6)
