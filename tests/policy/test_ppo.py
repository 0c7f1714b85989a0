import math

import pytest
import torch
from policy_cases import f64

from burnish.errors import ArgumentError
from burnish.policy import (
    KL,
    Aggregate,
    BatchWhiten,
    GeneralisedAdvantage,
    InformativeGroups,
    LossBatch,
    NoCritic,
    NormaliseThenSum,
    Recipe,
    ReferenceFrozen,
    RewardBatch,
    SeparateCritic,
    SharedCritic,
    SignConflict,
    TriFactor,
    advantages,
    loss,
)

NAN = math.nan


def ppo(critic=None, **gae):
    return Recipe(
        advantage=GeneralisedAdvantage(**gae),
        critic=critic or SharedCritic(),
        aggregate=Aggregate(mode="token-mean"),
    )


def batch_of(rewards, values, lengths, kl=None):
    """One reward, and every rollout a group of its own."""
    rollouts = len(lengths)
    return RewardBatch(
        rewards_BK=f64(rewards)[:, None],
        weights_K=f64([1.0]),
        groups_B=torch.arange(rollouts),
        lengths_B=torch.tensor(lengths),
        truncated_B=torch.zeros(rollouts, dtype=torch.bool),
        names=("correct",),
        values_BT=f64(values),
        kl_BT=None if kl is None else f64(kl),
    )


def test_groups_of_one_have_an_advantage_a_token():
    # delta = (0 + 0.5 * 2 - 1, 1 - 2) = (0, -1); the first adds 0.5 * 0.5 * -1.
    step = advantages(
        ppo(gamma=0.5, lam=0.5, whiten=False), batch_of([1.0, 3.0], [[1, 2], [1, 9]], [2, 1])
    )
    assert step.values_B.tolist() == [[-0.25, -1.0], [2.0, 0.0]]
    assert step.critic.returns_BT.tolist() == [[0.75, 1.0], [3.0, 0.0]]
    assert step.keep_B.tolist() == step.signal_B.tolist() == [True, True]
    assert step.counted_BT.tolist() == [[True, True], [True, False]]
    # Returns 0.75, 1, 3 and what is left of them, -0.25, -1, 2.
    spread, rest = f64([0.75, 1, 3]).var(correction=0), f64([-0.25, -1, 2]).var(correction=0)
    found = step.diagnostics
    assert found["critic/explained_variance"] == pytest.approx(float(1 - rest / spread))
    assert found["critic/value"] == pytest.approx(4 / 3)
    assert found["critic/return"] == pytest.approx(4.75 / 3)


def test_the_kl_is_taken_from_every_tokens_reward():
    given = batch_of([1.0], [[0.0, 0.0]], [2], kl=[[0.1, -0.2]])
    step = advantages(ppo(lam=1.0, whiten=False, kl=0.5), given)
    assert step.values_B[0].tolist() == pytest.approx([1 - 0.05 + 0.1, 1 + 0.1])
    assert step.diagnostics["critic/kl"] == pytest.approx(-0.05)


def test_whitened_advantages_have_mean_0_and_variance_1_and_returns_stay():
    given = batch_of([1.0, 0.0, 0.5], torch.rand(3, 4).tolist(), [4, 2, 3])
    plain, white = (advantages(ppo(whiten=on), given) for on in (False, True))
    known = white.values_B[white.counted_BT]
    assert float(known.mean()) == pytest.approx(0, abs=1e-12)
    assert float(known.var()) == pytest.approx(1, abs=1e-6)
    assert torch.equal(plain.critic.returns_BT, white.critic.returns_BT)


def test_a_rollout_without_a_reward_leaves_all_statistics():
    both = advantages(ppo(), batch_of([1.0, NAN, 0.0], [[0.5, 0.1]] * 3, [2, 2, 1]))
    rest = advantages(ppo(), batch_of([1.0, 0.0], [[0.5, 0.1]] * 2, [2, 1]))
    assert both.keep_B.tolist() == [True, False, True]
    assert torch.equal(both.values_B[[0, 2]], rest.values_B)
    assert both.values_B[1].tolist() == both.critic.returns_BT[1].tolist() == [0.0, 0.0]
    name = "critic/explained_variance"
    assert both.diagnostics[name] == rest.diagnostics[name]


def test_equal_returns_have_no_explained_variance():
    step = advantages(ppo(lam=1.0), batch_of([1.0, 1.0], [[0.2], [0.7]], [1, 1]))
    assert "critic/explained_variance" not in step.diagnostics


def book_loss(logp, old, values, old_values, rewards, lengths, kl, gae, critic):
    """PPO token by token in plain Python: float64 sums, autograd only through logp and values."""
    tokens = [(b, t) for b, n in enumerate(lengths) for t in range(n)]
    found, returns = {}, {}
    for b, n in enumerate(lengths):
        after = 0.0
        for t in reversed(range(n)):
            reward = (rewards[b] if t == n - 1 else 0.0) - gae.kl * kl[b][t]
            follows = old_values[b][t + 1] if t < n - 1 else 0.0
            after = reward + gae.gamma * follows - old_values[b][t] + gae.gamma * gae.lam * after
            found[b, t], returns[b, t] = after, after + old_values[b][t]
    mean = sum(found.values()) / len(tokens)
    spread = sum((a - mean) ** 2 for a in found.values()) / (len(tokens) - 1)
    total = 0.0
    for b, t in tokens:
        advantage = (found[b, t] - mean) / math.sqrt(spread + 1e-8)
        ratio = (logp[b, t] - old[b][t]).exp()
        held = ratio.clamp(0.8, 1.2)
        total = total - torch.minimum(ratio * advantage, held * advantage)
        value, before, wanted = values[b, t], old_values[b][t], returns[b, t]
        near = before + (value - before).clamp(-critic.clip, critic.clip)
        worse = torch.maximum((value - wanted) ** 2, (near - wanted) ** 2)
        total = total + critic.coefficient * 0.5 * worse
    return total / len(tokens)


@pytest.mark.parametrize("seed", range(5))
def test_the_whole_loss_is_that_of_the_book(seed):
    draw = torch.Generator().manual_seed(seed)
    lengths, shape = [5, 1, 3, 4], (4, 5)

    def normal(scale=1.0):
        return scale * torch.randn(shape, generator=draw, dtype=torch.float64)

    rewards, kl, old_values, old = [1.0, 0.0, 0.25, 1.0], normal(0.3), normal(), normal() - 3
    logp = (old + normal(0.6)).requires_grad_(True)
    values = (old_values + normal(0.4)).requires_grad_(True)
    critic = SharedCritic(coefficient=0.3, clip=0.25)
    recipe = ppo(critic, gamma=0.97, lam=0.9, kl=0.2)
    step = advantages(recipe, batch_of(rewards, old_values.tolist(), lengths, kl.tolist()))
    found = loss(
        recipe,
        LossBatch(
            logp_BT=logp,
            old_logp_BT=old,
            mask_BT=step.counted_BT,
            advantages_B=step.values_B,
            low_B=step.low_B,
            high_B=step.high_B,
            keep_B=step.keep_B,
            values_BT=values,
            old_values_BT=step.critic.values_BT,
            returns_BT=step.critic.returns_BT,
        ),
    )
    lists = (old.tolist(), old_values.tolist(), kl.tolist())
    theirs = book_loss(
        logp, lists[0], values, lists[1], rewards, lengths, lists[2], recipe.advantage, critic
    )
    assert float(found.total.detach()) == pytest.approx(float(theirs.detach()), abs=1e-12)
    assert float(found.parts["value"]) > 0.01
    assert float(found.clipped_share) > 0
    ours = torch.autograd.grad(found.total, [logp, values])
    for mine, book in zip(ours, torch.autograd.grad(theirs, [logp, values]), strict=True):
        torch.testing.assert_close(mine, book, rtol=0, atol=1e-12)


REFUSED = {
    "no critic": (lambda: ppo(NoCritic()), "critic: 'gae' reads the values of a critic"),
    "no gae": (lambda: Recipe(critic=SharedCritic()), "'sum_then_normalise' never reads"),
    "kl twice": (
        lambda: Recipe(
            advantage=GeneralisedAdvantage(kl=0.1), critic=SharedCritic(), auxiliary=(KL(0.1),)
        ),
        "auxiliary: 'kl' is a term of the loss",
    ),
    "groups": (
        lambda: Recipe(
            advantage=GeneralisedAdvantage(), critic=SharedCritic(), select=InformativeGroups()
        ),
        "'gae' learns from them too",
    ),
    "conflict": (
        lambda: Recipe(
            advantage=GeneralisedAdvantage(), critic=SharedCritic(), select=SignConflict()
        ),
        "never compares them",
    ),
    "sequence": (
        lambda: Recipe(advantage=GeneralisedAdvantage(), critic=SharedCritic(), ratio="sequence"),
        "'gae' each token its own advantage",
    ),
    "whitened twice": (
        lambda: Recipe(
            advantage=GeneralisedAdvantage(), critic=SharedCritic(), post_scale=BatchWhiten()
        ),
        "'gae' has one a token",
    ),
    "tri-factor": (
        lambda: Recipe(
            advantage=GeneralisedAdvantage(),
            critic=SharedCritic(),
            shaping=(ReferenceFrozen(),),
            weights=TriFactor(),
        ),
        "'gae' has an advantage a token",
    ),
    "critic beside gdpo": (
        lambda: Recipe(advantage=NormaliseThenSum(), critic=SharedCritic()),
        "use advantage 'gae', or critic 'none'",
    ),
    "NaN values": (lambda: advantages(ppo(), batch_of([1.0], [[NAN]], [1])), "values: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(case):
    make, line = REFUSED[case]
    with pytest.raises(ArgumentError) as refused:
        make()
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_separate_critic_adds_nothing_to_the_policys_loss():
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([[0.5, 0.25]], dtype=torch.float64, requires_grad=True)
    given = LossBatch(
        logp_BT=logp,
        old_logp_BT=logp.detach(),
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        advantages_B=f64([[1.0, -0.5]]),
        low_B=f64([0.2]),
        high_B=f64([0.2]),
        keep_B=torch.tensor([True]),
        values_BT=values,
        old_values_BT=values.detach(),
        returns_BT=f64([[1.0, 1.0]]),
    )
    apart, shared = loss(ppo(SeparateCritic()), given), loss(ppo(SharedCritic()), given)
    assert "value" not in apart.parts
    assert apart.total.item() == apart.parts["surrogate"].item() == pytest.approx(-0.25)
    # 0.1 of the mean of 0.5 (0.5 - 1)^2 and 0.5 (0.25 - 1)^2.
    assert (shared.total - apart.total).item() == pytest.approx(0.1 * (0.125 + 0.28125) / 2)
    assert torch.autograd.grad(apart.total, values, allow_unused=True)[0] is None
