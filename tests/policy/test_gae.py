import pytest
import torch
from hypothesis import given, strategies as st
from policy_cases import f64

from burnish.errors import UserError
from burnish.policy import gae, terminal_rewards, value_loss


def drawn(seed, rows=3, tokens=6, gaps=True):
    draw = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(rows, tokens, generator=draw).double() for _ in range(2))
    if gaps:
        return rewards, values, torch.rand(rows, tokens, generator=draw) < 0.6
    lengths = torch.randint(1, tokens + 1, (rows, 1), generator=draw)
    return rewards, values, torch.arange(tokens) < lengths


def trl_recursion(rewards, values, gamma, lam):
    """TRL's loop of `PPOTrainer`: no mask, values and rewards of padding are 0."""
    last, found = torch.zeros(len(rewards)).double(), []
    length = rewards.shape[1]
    for t in reversed(range(length)):
        following = values[:, t + 1] if t < length - 1 else 0.0
        last = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * last
        found.append(last)
    return torch.stack(found[::-1], 1)


def test_worked_numbers():
    # delta = (0 + 0.5 * 2 - 1, 1 - 2) = (0, -1); the first adds 0.5 * 0.5 * -1.
    found = gae([[0.0, 1.0]], [[1.0, 2.0]], [[1, 1]], gamma=0.5, lam=0.5)
    assert found.advantages.tolist() == [[-0.25, -1.0]]
    assert found.returns.tolist() == [[0.75, 1.0]]


@given(st.integers(0, 10_000))
def test_lambda_1_is_the_return_and_lambda_0_the_difference(seed):
    rewards, values, mask = drawn(seed, gaps=False)
    rewards, values = rewards * mask, values * mask
    togo = rewards.flip(1).cumsum(1).flip(1)
    full = gae(rewards, values, mask, 1.0, 1.0)
    assert torch.allclose(full.returns, togo * mask)
    short = gae(rewards, values, mask, 0.9, 0.0)
    following = torch.cat([values[:, 1:], torch.zeros(3, 1)], 1)
    assert torch.allclose(short.advantages, (rewards + 0.9 * following - values) * mask)


@given(st.integers(0, 10_000))
def test_tokens_outside_the_mask_have_no_part(seed):
    rewards, values, mask = drawn(seed)
    found = gae(rewards, values, mask, 0.97, 0.9)
    other = gae(rewards + 9 * ~mask, values - 7 * ~mask, mask, 0.97, 0.9)
    assert torch.equal(found.advantages, other.advantages)
    assert (found.advantages[~mask] == 0).all()
    for row in range(len(mask)):
        here = mask[row]
        alone = gae(rewards[row][here][None], values[row][here][None], mask[row][here][None], 0.97, 0.9)  # fmt: skip
        assert torch.allclose(alone.advantages[0], found.advantages[row][here])


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_right_padding_is_as_in_trl(seed, gamma, lam):
    rewards, values, mask = drawn(seed, gaps=False)
    expected = trl_recursion(rewards * mask, values * mask, gamma, lam)
    assert torch.allclose(gae(rewards, values, mask, gamma, lam).advantages, expected * mask)


@pytest.mark.peers
@pytest.mark.parametrize("seed", range(5))
def test_verl_has_the_same(seed):
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    rewards, values, mask = drawn(seed, 8, 20)
    advantages, returns = compute_gae_advantage_return(rewards, values, mask.double(), 0.99, 0.95)
    found = gae(rewards, values, mask, 0.99, 0.95, whiten=True)
    assert torch.allclose(found.advantages[mask], advantages[mask], atol=1e-6)
    assert torch.allclose(found.returns[mask], returns[mask])


def test_whitening_of_equal_advantages_is_0():
    found = gae([[0.3], [0.3]], [[0.1], [0.1]], [[1], [1]], whiten=True)
    assert found.advantages.tolist() == [[0.0], [0.0]]


def test_a_reward_lands_on_the_last_trained_token():
    mask = [[1, 1, 0], [1, 0, 1], [0, 0, 0]]
    assert terminal_rewards([1.0, 2.0, 3.0], mask).tolist() == [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
    kl = terminal_rewards([1.0, 2.0, 3.0], mask, penalties=[[0.5] * 3] * 3)
    assert kl.tolist() == [[-0.5, 0.5, 0], [-0.5, 0, 1.5], [0, 0, 0]]


def test_the_critics_loss():
    values = f64([[1.0, 3.0, 9.0]]).requires_grad_()
    loss = value_loss(values, [[1.0, 1.0, 1.0]], [[2.0, 0.0, 0.0]], [[1, 1, 0]], clip=0.5)
    # (1 - 2)^2 = 1; max(3^2, 1.5^2) = 9; half of their mean.
    assert loss.item() == 2.5
    loss.backward()
    assert values.grad.tolist() == [[-0.5, 1.5, 0.0]]
    with pytest.raises(UserError, match="returns: got shape"):
        value_loss(values, values, [[1.0]], [[1, 1, 0]])
