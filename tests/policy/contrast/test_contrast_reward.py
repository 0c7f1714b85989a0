import math

import pytest
import torch
from contrast_cases import LOSSES, batch
from hypothesis import given, strategies as st

from burnish.policy import grpo_advantage
from burnish.policy.contrast.component import clipo_advantage
from burnish.policy.contrast.head import contrastive_reward, floor_share
from burnish.policy.contrast.losses import contrastive_losses

LOSS_LISTS = st.lists(st.tuples(st.floats(0, 60), st.booleans()), min_size=1, max_size=20)


def test_rewards_by_hand():
    rewards = contrastive_reward([0.0, 1.0, 2.0, 2.5, 9.0, 1.0], [1, 1, 1, 1, 1, 0])
    assert rewards.tolist() == [0.0, -0.2, -0.4, -0.5, -0.5, 0.0]
    assert contrastive_reward([1.0, 3.0], [1, 1], lam=0.1, floor=-0.25).tolist() == [-0.1, -0.25]


def test_the_constant_is_for_right_rollouts_alone():
    rewards = contrastive_reward(
        [0.0, 1.0, 0.0, 0.0], [1, 1, 0, 1], constant=0.3, usable=[1, 1, 1, 0]
    )
    torch.testing.assert_close(rewards, torch.tensor([0.3, 0.1, 0.0, 0.0], dtype=torch.float64))


@given(LOSS_LISTS, st.floats(0, 5), st.floats(-0.999, 0))
def test_rewards_stay_between_floor_and_zero_and_right_outranks_wrong(cases, lam, floor):
    losses, labels = map(list, zip(*cases, strict=True))
    rewards = contrastive_reward(losses, labels, lam, floor)
    is_right = torch.tensor(labels)
    assert ((rewards >= floor) & (rewards <= 0)).all()
    assert (rewards[~is_right] == 0).all()
    total = is_right.double() + rewards
    if is_right.any() and not is_right.all():
        assert total[is_right].min() > total[~is_right].max()


@pytest.mark.parametrize("loss", LOSSES)
def test_lambda_zero_is_the_base_recipe_bit_for_bit(loss):
    embeddings, labels, groups = batch([6, 6, 4, 1], seed=5)
    per_sample = contrastive_losses(embeddings, labels, groups, loss).per_sample
    assert per_sample.count_nonzero() > 0
    rewards = contrastive_reward(per_sample, labels, lam=0.0)
    verifier = labels.double() * 0.7 + 0.1
    assert torch.equal(verifier + rewards, verifier)
    assert torch.equal(clipo_advantage(verifier, rewards, groups), grpo_advantage(verifier, groups))


def test_the_advantage_by_hand():
    # 1 and 0.8 against 0 and 0: mean 0.45, squares 0.3025 + 0.1225 + 2 * 0.2025 = 0.83.
    advantage = clipo_advantage([1, 1, 0, 0], [0.0, -0.2, 0.0, 0.0], [3] * 4, ddof=0, eps=0.0)
    spread = math.sqrt(0.83 / 4)
    expected = [0.55 / spread, 0.35 / spread, -0.45 / spread, -0.45 / spread]
    torch.testing.assert_close(advantage, torch.tensor(expected, dtype=torch.float64))


def test_a_missing_verifier_reward_stays_missing():
    advantage = clipo_advantage([1, math.nan, 0], [-0.1, 0.0, 0.0], [0] * 3, eps=0.0)
    root = math.sqrt(0.5)
    torch.testing.assert_close(advantage, torch.tensor([root, 0.0, -root], dtype=torch.float64))


def test_an_untrained_head_sits_on_the_floor_unless_lambda_is_small():
    # With all rollouts orthogonal every loss is ln 15 = 2.71, and 0.2 * 2.71 is above 0.5.
    result = contrastive_losses(torch.eye(16, dtype=torch.float64), [1] * 8 + [0] * 8, [0] * 16)
    torch.testing.assert_close(result.mean, torch.tensor(math.log(15), dtype=torch.float64))
    labels = [1] * 8 + [0] * 8
    for lam, share in ((0.2, 1.0), (0.99 * 0.5 / math.log(15), 0.0)):
        rewards = contrastive_reward(result.per_sample, labels, lam)
        assert floor_share(rewards, result.anchors, -0.5) == share


def test_the_floor_share_counts_anchors_alone():
    assert (
        floor_share(torch.tensor([-0.5, -0.2, -0.5, 0.0]), torch.tensor([1, 1, 0, 0]).bool(), -0.5)
        == 0.5
    )
    assert math.isnan(floor_share(torch.zeros(2), torch.zeros(2).bool(), -0.5))
