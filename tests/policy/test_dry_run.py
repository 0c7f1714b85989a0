import json
import math
from functools import partial

import policy_cases
import pytest
import torch
from hypothesis import given, settings, strategies as st
from policy_cases import f64

from burnish.policy import (
    NormaliseThenSum,
    Recipe,
    ReferenceFrozen,
    ReferenceStats,
    RewardBatch,
    SumThenNormalise,
    TriFactor,
    advantages,
    compare_weightings,
    grpo_advantage,
)
from burnish.policy.dry_run import METHODS

NAN = math.nan
EXACT = SumThenNormalise(eps=0.0)
FIVE = (-8.0, -1.0, 0.0, 2.0, 9.0)


assert_close = partial(policy_cases.assert_close, equal_nan=True)


def by_method(found):
    return {one.method: one for one in found.methods}


def tables(missing=True):
    values = st.sampled_from((*FIVE, NAN) if missing else FIVE)

    def of(width):
        row = st.lists(values, min_size=width, max_size=width)
        return st.lists(row, min_size=4, max_size=8).map(f64)

    return st.integers(1, 3).flatmap(of)


def test_shares_by_hand():
    # One group; a = 0, 10 and b = 1, 0. The sum is 1, 10: centred -4.5, 4.5, of which a brings
    # -5, 5 and b 0.5, -0.5: shares 10/11 and 1/11. GDPO gives both the same share, and cancels.
    found = compare_weightings([[0, 1], [10, 0]], ["q", "q"], names=["a", "b"], scaling=EXACT)
    total = by_method(found)["sum"]
    assert_close(total.share_K, [10 / 11, 1 / 11])
    deviation = 9 / math.sqrt(2)  # of 1 and 10, with one degree of freedom
    assert_close(total.advantages_B, [-4.5 / deviation, 4.5 / deviation])
    assert_close(total.correlation_K, [1, -1])
    gdpo = by_method(found)["gdpo"]
    assert_close(gdpo.advantages_B, [0, 0])
    # All rows are the reference: a has mean 5, sd 5, b mean 0.5, sd 0.5; they cancel there too.
    assert_close(found.reference.mean_K, [5, 0.5])
    assert_close(found.reference.sd_K, [5, 0.5])
    for method in ("gdpo", "reference_frozen"):
        assert by_method(found)[method].share_K.isnan().all()
        assert by_method(found)[method].correlation_K.isnan().all()


def test_the_three_factors_by_hand():
    # z of a: 1, -1, 1, -1 (mean 0); of b: 3, 1, 3, 1 (mean 2): correlation 1. c: -1, -1, 1, 1,
    # uncorrelated with both. Mean progress 2/3; half of c lies below 0.
    reference = ReferenceStats(f64([0, 0, 0]), f64([1, 1, 1]), torch.tensor([9, 9, 9]))
    rewards = [[1, 3, -1], [-1, 1, -1], [1, 3, 1], [-1, 1, 1]]
    found = compare_weightings(
        rewards,
        [0, 0, 1, 1],
        names=["a", "b", "c"],
        reference=reference,
        rule=TriFactor(severity={"c": 3.0}, threshold={"c": 0.0}, w_min=0.1),
    )
    weakness = [math.exp(-0.5 * (m - 2 / 3)) for m in (0, 2, 0)]
    assert_close(found.factors.progress_K, [0, 2, 0])
    assert_close(found.factors.weakness_K, weakness)
    assert_close(found.factors.risk_K, [1, 1, 1 + 3 * 0.5])
    assert_close(found.factors.redundancy_K, [0.5, 0.5, 1])
    raw = [weakness[0] / 2, weakness[1] / 2, weakness[2] * 2.5]
    expected = [3 * x / sum(raw) for x in raw]
    assert all(0.1 < x < 4 for x in expected)
    assert_close(found.factors.weight_K, expected)
    assert_close(found.factors.settled_K, expected)
    assert_close(found.below_K, [NAN, NAN, 0.5])
    # c is the same for all of a group: its weight rises and its share stays 0.
    assert_close(by_method(found)["tri_factor"].share_K[2], 0)
    # In a group: a and b bring w_a and w_b, of weights 0.5 exp(1/3) and 0.5 exp(-2/3): e to 1.
    assert_close(
        by_method(found)["tri_factor"].share_K[:2], [math.e / (math.e + 1), 1 / (math.e + 1)]
    )
    assert_close(by_method(found)["reference_frozen"].share_K, [0.5, 0.5, 0])


def test_weights_follow_the_steps_as_in_training():
    rewards = [[1.0, 3.0], [-1.0, 1.0], [0.0, 2.0]] * 2
    reference = ReferenceStats(f64([0, 0]), f64([1, 1]), torch.tensor([9, 9]))
    steps = [0, 0, 0, 1, 1, 1]
    found = compare_weightings(rewards, [0] * 6, steps=steps, reference=reference).factors
    # Raw weights 0.5 exp(0.5) and 0.5 exp(-0.5), scaled to mean 1; a fifth of the way each step.
    goal = 2 * math.exp(0.5) / (math.exp(0.5) + math.exp(-0.5))
    assert_close(found.settled_K, [goal, 2 - goal])
    assert_close(found.weight_K[0], 0.64 * 1 + 0.36 * goal)
    assert_close(
        compare_weightings(rewards, [0] * 6, reference=reference).factors.weight_K[0], goal
    )


def test_the_same_group_label_in_another_step_is_another_group():
    rewards = [[0.0], [1.0], [100.0], [101.0]]
    found = by_method(compare_weightings(rewards, ["q"] * 4, steps=[0, 0, 1, 1]))
    assert_close(found["sum"].advantages_B, [-(0.5**0.5), 0.5**0.5] * 2, 1e-5)


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_advantages_are_those_of_the_doors(table, data):
    count = len(table)
    groups = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    names = tuple("abc"[: table.shape[1]])
    reference = ReferenceStats(*(torch.full((len(names),), x).double() for x in (0.5, 2.0, 9)))
    rule = TriFactor(severity={"a": 2.0}, threshold={"a": 0.0})
    found = compare_weightings(
        table,
        groups,
        names=names,
        steps=[0] * count,
        weights=[0.5] * len(names),
        reference=reference,
        rule=rule,
    )
    batch = RewardBatch(
        rewards_BK=table,
        weights_K=torch.full((len(names),), 0.5),
        groups_B=torch.tensor(groups),
        lengths_B=torch.ones(count),
        truncated_B=torch.zeros(count, dtype=torch.bool),
        names=names,
    )
    frozen = (ReferenceFrozen(),)
    recipes = (
        Recipe(),
        Recipe(advantage=NormaliseThenSum()),
        Recipe(shaping=frozen),
        Recipe(shaping=frozen, weights=rule),
    )
    from burnish.policy import PolicyState

    state = PolicyState(reference=reference)
    for one, recipe in zip(found.methods, recipes, strict=True):
        assert_close(one.advantages_B, advantages(recipe, batch, state).values_B, 1e-6)
        assert_close(one.contributions_BK.sum(1), one.advantages_B)
        total = one.share_K.sum().item()
        assert math.isnan(total) or total == pytest.approx(1.0)
    assert_close(found.factors.weight_K.mean(), 1.0)


@settings(max_examples=40, deadline=None)
@given(tables(missing=False), st.randoms())
def test_permuting_the_rewards_permutes_everything(table, random):
    order = list(range(table.shape[1]))
    random.shuffle(order)
    groups = [row % 2 for row in range(len(table))]
    names = list("abc"[: len(order)])
    known = set(names) & {"a", "c"}
    rule = TriFactor(severity=dict.fromkeys(known, 2.0), threshold=dict.fromkeys(known, 0.5))
    plain = compare_weightings(table, groups, names=names, rule=rule)
    mixed = compare_weightings(table[:, order], groups, names=[names[i] for i in order], rule=rule)
    assert_close(plain.factors.weight_K[order], mixed.factors.weight_K)
    assert_close(plain.below_K[order], mixed.below_K)
    for left, right in zip(plain.methods, mixed.methods, strict=True):
        assert_close(left.advantages_B, right.advantages_B, 1e-6)
        assert_close(left.share_K[order], right.share_K, 1e-6)


def test_one_reward_has_weight_one_and_the_whole_share():
    rule = TriFactor(severity={"0": 4.0}, threshold={"0": 0.5})
    found = compare_weightings([0.0, 1.0, 0.0, 3.0], [0, 0, 1, 1], rule=rule)
    assert_close(found.factors.weight_K, [1])
    assert_close(found.below_K, [0.5])
    for one in found.methods:
        assert_close(one.share_K, [1])
        assert_close(one.correlation_K, [1])


def test_missing_rewards_leave_the_sum_and_count_as_the_start_model_elsewhere():
    rewards = [[1, NAN], [0, 2], [2, 0], [NAN, NAN]]
    found = by_method(compare_weightings(rewards, [0] * 4))
    # The sum has rows 1 and 2 only, whose sums are equal: nothing is learnt.
    assert found["sum"].advantages_B.tolist() == [0.0] * 4
    assert found["reference_frozen"].advantages_B[3] == 0
    # b of row 0 is missing: z = 0. a: mean 1, sd sqrt(2/3), so row 0 is 0, rows 1 and 2 cancel to
    # -1.2247 + 1 and 1.2247 - 1.
    half = math.sqrt(1.5) - 1
    deviation = math.sqrt(half**2)  # of -half, half and 0 with one degree of freedom
    expected = [0, -half / (deviation + 1e-6), half / (deviation + 1e-6), 0]
    assert_close(found["reference_frozen"].advantages_B, expected)


def test_a_row_without_a_sum_has_no_say_in_how_a_reward_agrees_with_it():
    rewards = [[10, -1, 0.2], [5, 0, 0.1], [0, 0, NAN], [3, -1, 0.0], [4, 0, 0.2]]
    found = by_method(compare_weightings(rewards, list("aaabb")))
    # Sums 9.2 and 5.1, 2 and 4.2: the first reward is on their side in both groups, the second
    # in one of two.
    assert_close(found["sum"].correlation_K, [1, 0, 1])


def test_the_first_rows_or_a_table_stand_for_the_start_model():
    rewards = [[0.0], [2.0], [50.0], [60.0]]
    first = compare_weightings(rewards, [0, 0, 1, 1], reference=2)
    assert_close([first.reference.mean_K[0], first.reference.sd_K[0]], [1, 1])
    assert_close(first.saturated_K, [0.5])
    same = compare_weightings(rewards, [0, 0, 1, 1], reference=[[0.0], [2.0]])
    assert_close(same.methods[3].advantages_B, first.methods[3].advantages_B)


@given(tables(), st.sampled_from(("group_std", "batch_std", "none")), st.sampled_from((0, 1)))
@settings(max_examples=40, deadline=None)
def test_every_scale_is_that_of_the_advantage_piece(table, scale, ddof):
    groups = [row // 3 for row in range(len(table))]
    scaling = SumThenNormalise(scale=scale, ddof=ddof)
    found = compare_weightings(table, groups, reference=start_of(table), scaling=scaling)
    assert_close(
        by_method(found)["sum"].advantages_B, grpo_advantage(table, groups, scale, ddof=ddof)
    )


def start_of(table):
    width = table.shape[1]
    return ReferenceStats(f64([0.0] * width), f64([1.0] * width), torch.tensor([9] * width))


@given(tables())
@settings(max_examples=25, deadline=None)
def test_replayed_rows_move_the_weights_and_are_not_told_of(table):
    twice = torch.cat((table, table.flip(0)))
    steps = [0] * len(table) + [1] * len(table)
    groups, start = [row // 2 for row in range(len(twice))], start_of(table)
    scaling = SumThenNormalise(scale="batch_std")
    whole = compare_weightings(twice, groups, steps=steps, reference=start, scaling=scaling)
    later = compare_weightings(
        twice, groups, steps=steps, reference=start, scaling=scaling, replayed=len(table)
    )
    assert_close(later.factors.weight_K, whole.factors.weight_K)
    for one, both in zip(later.methods, whole.methods, strict=True):
        assert_close(one.advantages_B, both.advantages_B[len(table) :])
        assert one.left_out * 2 == both.left_out
    assert_close(later.missing_K * 2, whole.missing_K)


def test_rows_left_out_are_counted_by_method_and_missing_values_by_reward():
    rewards = [[1.0, NAN], [2.0, 3.0], [NAN, NAN], [4.0, 5.0]]
    found = compare_weightings(rewards, [0] * 4, names=["a", "b"])
    counts = {one.method: one.left_out for one in found.methods}
    assert counts == {"sum": 2, "gdpo": 1, "reference_frozen": 1, "tri_factor": 1}
    record = found.record()
    assert record["left_out"] == counts
    assert [record["rewards"][name]["missing"] for name in "ab"] == [1, 2]


def test_a_record_is_plain_json_with_none_for_no_number():
    record = compare_weightings([[0, 1], [10, 0]], [0, 0], names=["a", "b"], scaling=EXACT).record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert tuple(record["methods"]) == METHODS
    assert record["methods"]["sum"]["a"]["share"] == pytest.approx(10 / 11)
    assert record["methods"]["gdpo"]["a"]["share"] is None
    assert record["rewards"]["b"]["below_threshold"] is None
