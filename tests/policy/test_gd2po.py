import math

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from policy_cases import assert_close

from burnish.policy.conflict import conflict_keep
from burnish.policy.dapo import informative_groups
from burnish.policy.gdpo import gd2po_advantage, gdpo_advantage
from burnish.policy.groups import per_reward_advantages
from burnish.policy.grpo import grpo_advantage
from burnish.policy.post_scale import batch_whiten

NAN = math.nan
VARIANTS = st.sampled_from(["hard", "snr"])

# Group 0: rollouts 0 and 1 conflict, 2 and 3 have S = -1. Group 1: one reward, S = +-sqrt(3) / 2.
# Group 2: no signal.
REWARDS = [
    [1, 0], [0, 1], [0, 0], [0, 0],
    [1, 5], [1, 5], [0, 5], [0, 5],
    [0.1, 0.7], [0.1, 0.7], [0.1, 0.7], [0.1, 0.7],
]  # fmt: skip
GROUPS = [0] * 4 + [1] * 4 + [2] * 4
LENGTHS = [2] * 4 + [1] * 4 + [2] * 4
ROOT = math.sqrt(3) / 2


@st.composite
def cases(draw, columns=None, least=1, missing=False):
    """Rewards (B, K) on a grid, groups and lengths of 1 to 4 groups with up to 5 rollouts."""
    sizes = draw(st.lists(st.integers(least, 5), min_size=1, max_size=4))
    groups = [number for number, size in enumerate(sizes) for _ in range(size)]
    columns = columns or draw(st.integers(1, 3))
    cell = st.integers(-4, 4).map(float)
    if missing:
        cell = st.one_of(*[cell] * 5, st.just(NAN))
    rows = st.lists(cell, min_size=columns, max_size=columns)
    table = draw(st.lists(rows, min_size=len(groups), max_size=len(groups)))
    lengths = draw(
        st.lists(st.integers(1, 9), min_size=len(groups), max_size=len(groups)).filter(any)
    )
    return torch.tensor(table, dtype=torch.float64), groups, lengths


def test_the_sum_over_kept_rollouts_by_hand():
    unscaled = gd2po_advantage(REWARDS, GROUPS, whiten=False, query_weights=False, eps=0.0)
    assert_close(unscaled, [0, 0, -1, -1, ROOT, ROOT, -ROOT, -ROOT, 0, 0, 0, 0])
    # Half of group 0 is kept, all of the others.
    scaled = gd2po_advantage(REWARDS, GROUPS, whiten=False, eps=0.0)
    assert_close(scaled, [0, 0, -0.5, -0.5, ROOT, ROOT, -ROOT, -ROOT, 0, 0, 0, 0])


def test_the_published_whitening_pushes_a_group_without_signal_by_a_quarter():
    # Kept tokens: 4 of -1/2, 2 each of +-sqrt(3)/2, 8 of 0. Mean -2/16; squares 1 + 3, less
    # 16/64, over 15: variance 1/4. So (0 + 1/8) / (1/2) = 1/4 for answers that nobody preferred.
    published = gd2po_advantage(REWARDS, GROUPS, LENGTHS, eps=0.0, ignore_zero_signal=False)
    assert_close(published[8:], [0.25] * 4, 1e-7)
    assert_close(published[:4], [0, 0, -0.75, -0.75], 1e-7)
    assert_close(published[4:8], [2 * ROOT + 0.25] * 2 + [0.25 - 2 * ROOT] * 2, 1e-7)
    only_scaled = gd2po_advantage(
        REWARDS, GROUPS, LENGTHS, eps=0.0, ignore_zero_signal=False, shift=False
    )
    assert_close(
        only_scaled, [0, 0, -1, -1, 2 * ROOT, 2 * ROOT, -2 * ROOT, -2 * ROOT, 0, 0, 0, 0], 1e-7
    )


def test_ours_leaves_that_group_at_zero_and_out_of_the_statistics():
    # 8 tokens: mean -2/8, squares 4 less 8/16, over 7: variance 1/2.
    ours = gd2po_advantage(REWARDS, GROUPS, LENGTHS, eps=0.0)
    assert (ours[8:] == 0).all()
    assert_close(ours[2:4], [-0.25 / math.sqrt(0.5)] * 2, 1e-7)
    without = gd2po_advantage(REWARDS[:8], GROUPS[:8], LENGTHS[:8], eps=0.0)
    assert torch.equal(ours[:8], without)


def test_a_group_whose_kept_rollouts_carry_no_signal_is_not_pushed():
    # The two that differ cancel themselves; what is kept of group 0 stands at its means.
    rewards = [[1, -1], [-1, 1], [0, 0], [0, 0], [1, 1], [0, 0], [0, 0], [0, 0]]
    values = gd2po_advantage(rewards, [0] * 4 + [1] * 4, [1, 1, 1, 1, 9, 1, 1, 1])
    assert (values[:4] == 0).all()
    assert (values[4:] != 0).all()


def test_the_snr_filter_by_hand():
    # Deviations (ddof 0, eps 0): reward 0 as (1, 1, -1, -1), reward 1 as (3, -1, -1, -1) / sqrt(3).
    rewards, groups = [[1, 1], [1, 0], [0, 0], [0, 0]], [0] * 4
    third = 1 / math.sqrt(3)
    options = {"whiten": False, "variant": "snr", "eps": 0.0, "ddof": 0}
    # Rollout 1: net (1 - 0.577) over gross (1 + 0.577) is 0.268.
    all_kept = gd2po_advantage(rewards, groups, tau=0.26, **options)
    assert_close(all_kept, [1 + 3 * third, 1 - third, -1 - third, -1 - third])
    dropped = gd2po_advantage(rewards, groups, tau=0.27, **options)
    assert_close(dropped, [0.75 * (1 + 3 * third), 0, -0.75 * (1 + third), -0.75 * (1 + third)])


def test_a_weight_of_zero_ends_a_conflict():
    rewards, groups = [[1, 0, 0], [0, 1, 0], [0, 0, 3]], [0] * 3
    assert (gd2po_advantage(rewards, groups, whiten=False) == 0).all()
    assert_close(
        gd2po_advantage(rewards, groups, weights=[0, 2, 0]),
        gdpo_advantage([r[1] for r in rewards], groups),
        1e-7,
    )
    holes = [[NAN, 0, NAN], [0, 1, NAN], [NAN, 0, 3]]
    assert_close(
        gd2po_advantage(holes, groups, weights=[0, 2, 0]),
        gd2po_advantage(rewards, groups, weights=[0, 2, 0]),
    )


@pytest.mark.parametrize(
    ("rewards", "groups", "lengths"),
    [
        ([[1, 0], [0, 1]], [0, 0], None),  # nobody is kept
        ([[1, 1], [0, 1]], [0, 1], None),  # groups of one
        ([[0.1, 0.3]] * 7, [0] * 7, [3] * 7),  # no difference that floats could invent
        ([[2, 0], [0, 1], [1, 0.9]], [0] * 3, [5, 5, 1]),  # one kept token at most
        ([[NAN, NAN]] * 3, [0] * 3, None),
        ([], [], None),
    ],
)
@pytest.mark.parametrize("variant", ["hard", "snr"])
def test_without_anything_to_learn_all_are_zero(rewards, groups, lengths, variant):
    values = gd2po_advantage(
        torch.tensor(rewards, dtype=torch.float64).reshape(-1, 2), groups, lengths, variant=variant
    )
    assert values.tolist() == [0] * len(groups)


@settings(max_examples=40)
@given(cases(columns=1, missing=True), VARIANTS)
def test_one_reward_makes_it_a_whitened_grpo(case, variant):
    rewards, groups, lengths = case
    one = rewards[:, 0]
    grpo = grpo_advantage(one, groups)
    signal = informative_groups(grpo, groups)
    whitened = batch_whiten(grpo, lengths, keep=~one.isnan(), signal=signal)
    assert torch.equal(gd2po_advantage(one, groups, lengths, variant=variant), whitened)
    assert torch.equal(gdpo_advantage(one, groups, lengths), whitened)
    twins = torch.stack([one, one, one], 1)
    assert_close(gd2po_advantage(twins, groups, lengths, variant=variant), whitened, 1e-6)


@settings(max_examples=40)
@given(cases(missing=True), st.booleans(), st.booleans())
def test_tau_of_zero_without_query_weights_is_gdpo_bit_for_bit(case, shift, ignore):
    rewards, groups, lengths = case
    options = {"shift": shift, "ignore_zero_signal": ignore}
    for given_lengths in (lengths, None):
        gdpo = gdpo_advantage(rewards, groups, given_lengths, **options)
        gd2po = gd2po_advantage(
            rewards, groups, given_lengths, variant="snr", tau=0.0, query_weights=False, **options
        )
        assert torch.equal(gdpo, gd2po)


@settings(max_examples=40)
@given(cases(missing=True))
def test_tau_of_one_is_the_hard_filter(case):
    rewards, groups, lengths = case
    assert torch.equal(
        gd2po_advantage(rewards, groups, lengths, variant="snr", tau=1.0),
        gd2po_advantage(rewards, groups, lengths, variant="hard"),
    )


@settings(max_examples=40)
@given(cases(missing=True), VARIANTS, st.randoms(use_true_random=False))
def test_order_changes_nothing(case, variant, random):
    rewards, groups, lengths = case
    order = random.sample(range(len(groups)), len(groups))
    shuffled = gd2po_advantage(
        rewards[order], [groups[i] for i in order], [lengths[i] for i in order], variant=variant
    )
    assert_close(shuffled, gd2po_advantage(rewards, groups, lengths, variant=variant)[order], 1e-7)


@settings(max_examples=40)
@given(cases(), VARIANTS, st.integers(1, 8), st.integers(-9, 9))
def test_the_scale_of_a_reward_changes_nothing(case, variant, slope, offset):
    rewards, groups, lengths = case
    rescaled = rewards.clone()
    rescaled[:, 0] = rescaled[:, 0] * slope + offset
    options = {"variant": variant, "eps": 0.0}
    assert_close(
        gd2po_advantage(rescaled, groups, lengths, **options),
        gd2po_advantage(rewards, groups, lengths, **options),
        1e-6,
    )


@settings(max_examples=40)
@given(cases(missing=True), VARIANTS, st.booleans())
def test_flipping_every_reward_flips_every_advantage(case, variant, ignore):
    rewards, groups, lengths = case
    options = {"variant": variant, "ignore_zero_signal": ignore}
    flipped = gd2po_advantage(-rewards, groups, lengths, **options)
    assert_close(flipped, -gd2po_advantage(rewards, groups, lengths, **options), 1e-6)


@settings(max_examples=40)
@given(cases(columns=2, least=2))
def test_dropped_rollouts_get_zero_and_tokens_have_mean_zero_and_variance_one(case):
    rewards, groups, lengths = case
    values = gd2po_advantage(rewards, groups, lengths)
    keep = conflict_keep(per_reward_advantages(rewards, groups))
    assert (values[~keep] == 0).all()
    tokens = torch.tensor(lengths)
    assert_close((values * tokens).sum(), 0.0)
    assume((values != 0).any())
    sums = gd2po_advantage(rewards, groups, whiten=False)
    counted = keep & informative_groups(sums, groups)
    before = sums[counted].repeat_interleave(tokens[counted]).var()
    after = values[counted].repeat_interleave(tokens[counted]).var()
    assert_close(after, before / (before + 1e-8))


@settings(max_examples=40)
@given(cases(columns=2, least=3), st.floats(1, 50))
def test_the_size_of_a_dropped_conflict_does_not_reach_the_whitening(case, length):
    rewards, groups, lengths = case
    keep = conflict_keep(per_reward_advantages(rewards, groups))
    assume(not keep.all())
    longer = [
        new if not kept else old
        for old, new, kept in zip(lengths, [length] * len(lengths), keep.tolist(), strict=True)
    ]
    assert torch.equal(
        gd2po_advantage(rewards, groups, lengths), gd2po_advantage(rewards, groups, longer)
    )


@settings(max_examples=40)
@given(cases(missing=True), VARIANTS)
def test_a_missing_rollout_is_as_if_it_were_not_there(case, variant):
    rewards, groups, lengths = case
    gone = len(groups) // 2
    rest = [i for i in range(len(groups)) if i != gone]
    rewards[gone] = NAN
    values = gd2po_advantage(rewards, groups, lengths, variant=variant)
    assert values[gone] == 0
    fewer = gd2po_advantage(
        rewards[rest], [groups[i] for i in rest], [lengths[i] for i in rest], variant=variant
    )
    assert_close(values[rest], fewer, 1e-7)


def plain_gd2po(rewards, groups, lengths, variant, tau):
    """The published form in plain Python, one rollout at a time."""
    rows, columns = len(rewards), len(rewards[0])
    members = {g: [i for i in range(rows) if groups[i] == g] for g in set(groups)}
    per_reward = [[0.0] * columns for _ in range(rows)]
    for group in members.values():
        for k in range(columns):
            values = [rewards[i][k] for i in group]
            if len(set(values)) < 2:
                continue
            mean = sum(values) / len(values)
            sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
            for i in group:
                per_reward[i][k] = (rewards[i][k] - mean) / (sd + 1e-6)
    keep = []
    for row in per_reward:
        conflict = max(row) > 1e-8 and min(row) < -1e-8
        ratio = abs(sum(row)) / (sum(abs(v) for v in row) + 1e-8)
        keep.append(not (conflict and (variant == "hard" or ratio < tau)))
    total = [
        sum(per_reward[i]) * sum(keep[j] for j in members[groups[i]]) / len(members[groups[i]])
        for i in range(rows)
    ]
    tokens = [total[i] for i in range(rows) if keep[i] for _ in range(lengths[i])]
    if len(tokens) < 2:
        return [0.0] * rows
    mean = sum(tokens) / len(tokens)
    variance = sum((t - mean) ** 2 for t in tokens) / (len(tokens) - 1)
    scale = math.sqrt(variance + 1e-8)
    return [(total[i] - mean) / scale if keep[i] else 0.0 for i in range(rows)]


@settings(max_examples=40)
@given(cases(least=2), VARIANTS, st.sampled_from([0.2, 0.5, 0.8]))
def test_the_published_form_written_out(case, variant, tau):
    rewards, groups, lengths = case
    expected = plain_gd2po(rewards.tolist(), groups, lengths, variant, tau)
    ratio_ties = any(abs(abs(v) - tau) < 1e-6 for v in ratios(rewards, groups))
    assume(variant == "hard" or not ratio_ties)
    values = gd2po_advantage(
        rewards, groups, lengths, variant=variant, tau=tau, ignore_zero_signal=False
    )
    assert_close(values, expected, 1e-6)


def ratios(rewards, groups):
    per_reward = per_reward_advantages(rewards, groups)
    return (per_reward.sum(1) / (per_reward.abs().sum(1) + 1e-8)).tolist()


def test_no_gradient_flows_through_the_advantages():
    rewards = torch.tensor(REWARDS, dtype=torch.float64, requires_grad=True)
    assert not gd2po_advantage(rewards, GROUPS, LENGTHS).requires_grad
