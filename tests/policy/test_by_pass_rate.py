import math

import msgspec
import pytest
import torch
from hypothesis import given, settings, strategies as st
from policy_cases import f64
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.policy import (
    PASS_BUCKETS,
    Elastic,
    LossBatch,
    Recipe,
    RewardBatch,
    StaticRegion,
    advantages,
    bucket_shares,
    bucket_sums,
    loss,
    pass_buckets,
    pass_rates,
    policy_loss,
)

NAN = math.nan


def rewards_of(columns, groups, weights=None):
    """A step from one list a reward."""
    return RewardBatch(
        rewards_BK=f64(columns).T,
        weights_K=f64(weights or [1.0] * len(columns)),
        groups_B=torch.tensor(groups),
        lengths_B=torch.full((len(groups),), 3),
        truncated_B=torch.zeros(len(groups), dtype=torch.bool),
        names=tuple("abcd"[: len(columns)]),
    )


def test_pass_rates_by_hand():
    # Group 0: 1 of 3, the missing one left out; group 1: all; group 2: no reward at all.
    found = pass_rates([1, 0, 0, NAN, 1, 1, NAN], [0, 0, 0, 0, 1, 1, 2])
    torch.testing.assert_close(found, f64([1 / 3] * 4 + [1, 1, NAN]), equal_nan=True)


def test_pass_rates_within_another_range():
    # (-1 + 0 + 1 + 1) / 4 = 1/4 of -1 .. 1 is 5/8.
    assert pass_rates([-1, 0, 1, 1], [7] * 4, -1, 1).tolist() == [0.625] * 4


def test_a_reward_outside_the_range_leaves_its_group_without_a_rate():
    found = pass_rates([0, 2, 0, 1], ["a", "a", "b", "b"])
    assert found[:2].isnan().all()
    assert found[2:].tolist() == [0.5, 0.5]
    # 0.1 + 0.2 is a little more than 0.3: rounding, not another range.
    assert pass_rates([0.1 + 0.2, 0.0], [0, 0], 0.0, 0.3).tolist() == pytest.approx([0.5, 0.5])


def test_buckets_by_hand():
    rates = [0, 0.19, 0.2, 0.39, 0.4, 0.5, 0.6, 0.79, 0.8, 1, NAN]
    assert pass_buckets(rates).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, -1]


@given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_rate_of_k_out_of_n_falls_where_whole_numbers_say(pair):
    passed, size = pair
    rates_B = pass_rates([1.0] * passed + [0.0] * (size - passed), [0] * size)
    assert pass_buckets(rates_B).tolist() == [min(5 * passed // size, 4)] * size


def test_edges_hold_for_sums_of_weighted_rewards():
    # Two rewards of weights 0.7 and 0.3: 0.7 + 0.3 + 0 + 0 + 0 over five is 0.2 up to rounding.
    assert pass_buckets(pass_rates([0.7, 0.3, 0, 0, 0], [0] * 5)).tolist() == [1] * 5


def test_sums_and_shares_by_hand():
    clipped = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    used = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]]).bool()
    sums = bucket_sums(clipped, used, torch.tensor([1, 1, 4, -1]))
    # Bucket 1: 2 of 2 and 1 of 3; bucket 4: 1 of 2; the last rollout has no bucket.
    assert sums.dtype == torch.float64
    assert sums.tolist() == [[0, 3, 0, 0, 1], [0, 5, 0, 0, 2]]
    assert bucket_shares(sums) == {"pass_0.2_0.4": 0.6, "pass_0.8_1": 0.5}
    assert bucket_shares(torch.zeros(2, 5)) == {}


def test_a_bucket_whose_tokens_are_all_inside_has_a_share_of_zero():
    assert bucket_shares([[0, 0, 0, 0, 0], [0, 0, 4, 0, 0]]) == {"pass_0.4_0.6": 0.0}


@st.composite
def moved_steps(draw):
    """Log-probs that moved, with advantages, masks and a bucket for every rollout."""
    rollouts, tokens = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    old_BT = torch.randn(rollouts, tokens, generator=generator)
    logp_BT = old_BT + 0.3 * torch.randn(rollouts, tokens, generator=generator)
    mask_BT = torch.rand(rollouts, tokens, generator=generator) < 0.8
    mask_BT[0, 0] = True
    keep_B = torch.rand(rollouts, generator=generator) < 0.8
    keep_B[0] = True
    values_B = torch.randn(rollouts, generator=generator)
    buckets_B = torch.randint(0, 5, (rollouts,), generator=generator)
    return logp_BT, old_BT, values_B, mask_BT, keep_B, buckets_B


@settings(max_examples=60)
@given(moved_steps())
def test_shares_weighted_by_tokens_are_the_share_of_all(step):
    logp_BT, old_BT, values_B, mask_BT, keep_B, buckets_B = step
    found = policy_loss(logp_BT, old_BT, values_B, mask_BT, keep=keep_B, buckets=buckets_B)
    clipped_P, tokens_P = found["clipped_by_bucket"]
    shares = bucket_shares(found["clipped_by_bucket"])
    weights = dict(zip(PASS_BUCKETS, tokens_P.tolist(), strict=True))
    total = sum(weights.values())
    assert total == int((mask_BT & keep_B[:, None]).sum())
    assert set(shares) == {name for name, weight in weights.items() if weight}
    mean = sum(share * weights[name] for name, share in shares.items()) / total
    assert mean == pytest.approx(found["clip_fraction"].item(), abs=1e-6)
    assert (clipped_P <= tokens_P).all()


@settings(max_examples=30)
@given(moved_steps())
def test_counting_changes_neither_loss_nor_gradient(step):
    logp_BT, old_BT, values_B, mask_BT, keep_B, buckets_B = step
    results = []
    for buckets in (None, buckets_B):
        leaf = logp_BT.clone().requires_grad_(True)
        found = policy_loss(leaf, old_BT, values_B, mask_BT, keep=keep_B, buckets=buckets)
        (gradient,) = torch.autograd.grad(found.pop("loss"), leaf)
        results.append((found, gradient))
    (plain, before), (counted, after) = results
    assert torch.equal(before, after)
    assert set(counted) - set(plain) == {"clipped_by_bucket"}
    assert all(torch.equal(plain[name], counted[name]) for name in plain)
    assert not counted["clipped_by_bucket"].requires_grad


@settings(max_examples=30)
@given(moved_steps(), st.integers(0, 8))
def test_parts_of_a_batch_add_up(step, cut):
    *tensors, buckets_B = step
    logp_BT, old_BT, values_B, mask_BT, keep_B = tensors

    def sums(rows):
        found = policy_loss(
            logp_BT[rows], old_BT[rows], values_B[rows], mask_BT[rows], keep=keep_B[rows],
            buckets=buckets_B[rows],
        )  # fmt: skip
        return found["clipped_by_bucket"]

    assert torch.equal(sums(slice(0, cut)) + sums(slice(cut, None)), sums(slice(None)))


class Waits(TorchDispatchMode):
    """Counts the operations for which a host waits for its device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal")
        self.count += func.overloadpacket.__name__ in names
        return func(*args, **(kwargs or {}))


# --- what the first door knows

GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
HALVES = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


def buckets(recipe, batch):
    return advantages(recipe, batch).buckets_B


def test_one_reward_of_zero_or_one_has_a_known_range():
    assert buckets(Recipe(), rewards_of([HALVES], GROUPS)).tolist() == [1] * 4 + [3] * 4
    missing = [NAN, *HALVES[1:]]
    assert buckets(Recipe(), rewards_of([missing], GROUPS)).tolist() == [0] * 4 + [3] * 4


def test_the_weight_of_the_reward_and_ignored_rewards_change_nothing():
    other = [0.3] * 8
    batch = rewards_of([other, HALVES], GROUPS, [0.0, 2.5])
    assert buckets(Recipe(), batch).tolist() == [1] * 4 + [3] * 4


def test_without_a_known_range_nothing_is_told_apart():
    graded = [0.5, *HALVES[1:]]
    assert buckets(Recipe(), rewards_of([graded], GROUPS)) is None
    assert buckets(Recipe(), rewards_of([HALVES, HALVES], GROUPS)) is None


def test_the_range_of_an_elastic_region_makes_it_known():
    recipe = Recipe(trust_region=Elastic(range=(0.0, 2.0)))
    graded = [0.5, *HALVES[1:]]
    # Sums of both rewards: 1.5 of 8, and 6 of 8.
    batch = rewards_of([graded, HALVES], GROUPS)
    assert buckets(recipe, batch).tolist() == [0] * 4 + [3] * 4


def test_bounds_by_bucket_by_hand():
    recipe = msgspec.structs.replace(Recipe(), trust_region=Elastic(strength=1.0, cap=1.5))
    step = advantages(recipe, rewards_of([HALVES], GROUPS))
    # ddof 1: the odd one out of four has |A| = 1.5, the others 0.5; bounds are 0.2 |A|.
    found = {k: v for k, v in step.diagnostics.items() if k.startswith("bounds/")}
    expected = {
        "bounds/high_mean": (0.3 + 3 * 0.1) / 4,
        "bounds/high_least": 0.1,
        "bounds/high_most": 0.3,
        "bounds/high_mean/pass_0.2_0.4": 0.3,
        "bounds/high_mean/pass_0.6_0.8": 0.1,
        "bounds/low_mean": (0.3 + 3 * 0.1) / 4,
        "bounds/low_least": 0.1,
        "bounds/low_most": 0.3,
        "bounds/low_mean/pass_0.2_0.4": 0.1,
        "bounds/low_mean/pass_0.6_0.8": 0.3,
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_static_region_has_buckets_and_no_figures_of_bounds():
    step = advantages(Recipe(trust_region=StaticRegion()), rewards_of([HALVES], GROUPS))
    assert step.buckets_B is not None
    assert not [name for name in step.diagnostics if name.startswith("bounds/")]


# --- faults


def test_nothing_waits_for_the_device():
    with Waits() as waits:
        torch.ones(1).item()
    assert waits.count == 1, "a wait was not seen"
    batch = LossBatch(
        logp_BT=torch.randn(4, 3),
        old_logp_BT=torch.randn(4, 3),
        mask_BT=torch.ones(4, 3).bool(),
        advantages_B=torch.randn(4),
        low_B=torch.full((4,), 0.2),
        high_B=torch.full((4,), 0.2),
        keep_B=torch.ones(4).bool(),
        buckets_B=torch.tensor([0.0, 1.0, 4.0, -1.0]),
    )
    with Waits() as waits:
        found = loss(Recipe(), batch)
    assert waits.count == 0
    assert found.clipped_by_bucket_2P[1].tolist() == [3, 3, 0, 0, 3]
