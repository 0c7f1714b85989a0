from dataclasses import replace

import msgspec
import pytest
import torch
from policy_cases import RECIPES, loss_batch, reward_batch

from burnish.policy import (
    KL,
    Aggregate,
    Recipe,
    advantages,
    gdpo_advantage,
    grpo_advantage,
    loss,
    normaliser_of,
)

REWARDS = [[1.0, 0.3], [0.0, 0.9], [0.0, 0.1], [1.0, 0.2], [0.0, 0.2], [1.0, 0.7]]
GROUPS = [0, 0, 0, 1, 1, 1]
VARIANTS = {
    **RECIPES,
    "gspo_token": Recipe(ratio="sequence_token", trust_region=RECIPES["gspo"].trust_region),
    "token_sum": Recipe(aggregate=Aggregate(mode="seq-mean-token-sum"), auxiliary=(KL(0.1, "k1"),)),
    "kept_denominator": Recipe(
        aggregate=Aggregate(keep_denominator=True), auxiliary=(KL(0.1, "k2"),)
    ),
    "corrected_kl": Recipe(auxiliary=(KL(0.5, correction=True),)),
    "corrected_kl_by_sequence": Recipe(
        ratio="sequence",
        trust_region=RECIPES["gspo"].trust_region,
        auxiliary=(KL(0.5, correction=True),),
    ),
}


def through_both_doors(recipe: Recipe, seed: int = 0):
    """The loss batch of a step whose advantages, selection and bounds come from the first door."""
    is_tight = recipe.ratio != "token"
    batch = loss_batch(seed=seed, spread=1e-3 if is_tight else 0.3)
    step = advantages(recipe, reward_batch(REWARDS, GROUPS, lengths=batch.mask_BT.sum(1).tolist()))
    return replace(
        batch,
        advantages_B=step.values_B,
        low_B=step.low_B,
        high_B=step.high_B,
        keep_B=step.keep_B & batch.keep_B,
    )


def gradient(recipe, batch):
    leaf = batch.logp_BT.detach().clone().requires_grad_(True)
    loss(recipe, replace(batch, logp_BT=leaf)).total.backward()
    return leaf.grad


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_equals_central_differences(name, seed):
    recipe = VARIANTS[name]
    batch = through_both_doors(recipe, seed)
    found = gradient(recipe, batch)
    step = 1e-6 if recipe.ratio == "token" else 1e-8
    if recipe.ratio == "sequence_token":
        # Its value is the sequence ratio while its gradient is taken token by token; with one
        # advantage a rollout that is the gradient of the plain sequence ratio.
        recipe = Recipe(ratio="sequence", trust_region=recipe.trust_region)
    expected = torch.zeros_like(found)
    for position in range(found.numel()):
        move = torch.zeros(found.numel(), dtype=torch.float64)
        move[position] = step
        up, down = (
            loss(
                recipe, replace(batch, logp_BT=batch.logp_BT.detach() + sign * move.view_as(found))
            )
            for sign in (1, -1)
        )
        expected.view(-1)[position] = (up.total - down.total).item() / (2 * step)
    assert found.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("cuts", [[1, 2, 3], [2, 2, 2], [5, 1], [1] * 6])
def test_micro_batches_add_up_to_the_big_batch(name, cuts):
    recipe = VARIANTS[name]
    batch = through_both_doors(recipe)
    whole = gradient(recipe, batch)
    total = loss(recipe, batch).total
    shared = normaliser_of(
        batch.mask_BT, batch.keep_B, keep_denominator=recipe.aggregate.keep_denominator
    )
    pieces, totals, start = [], [], 0
    for size in cuts:
        rows = slice(start, start + size)
        part = replace(
            batch,
            **{
                key: getattr(batch, key)[rows]
                for key in vars(batch)
                if isinstance(getattr(batch, key), torch.Tensor)
            },
            normaliser=shared,
        )
        pieces.append(gradient(recipe, part))
        totals.append(loss(recipe, part).total)
        start += size
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.stack(totals).sum(), total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_masked_tokens_and_dropped_rollouts_have_exactly_no_gradient(name):
    recipe = VARIANTS[name]
    batch = through_both_doors(recipe)
    found = gradient(recipe, batch)
    assert (found[~batch.mask_BT] == 0).all()
    assert not batch.keep_B.all()
    assert (found[~batch.keep_B] == 0).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_group_without_reward_differences_has_exactly_no_gradient(name):
    # The reference-model and entropy terms act on every kept token; they are not the group's signal.
    recipe = VARIANTS[name]
    bare = msgspec.structs.replace(recipe, auxiliary=())
    same = [[0.1, 0.7]] * 3 + REWARDS[3:]
    batch = loss_batch()
    step = advantages(bare, reward_batch(same, GROUPS, lengths=[3] * 6))
    found = gradient(bare, replace(batch, advantages_B=step.values_B, keep_B=step.keep_B))
    assert (found[:3] == 0).all()
    assert (found[3:].abs().sum(1) > 0).any()


def test_no_gradient_flows_through_rewards_or_old_log_probs():
    batch = loss_batch()
    old = batch.old_logp_BT.clone().requires_grad_(True)
    values = batch.advantages_B.clone().requires_grad_(True)
    loss(Recipe(), replace(batch, old_logp_BT=old, advantages_B=values)).total.backward()
    assert old.grad is None
    assert values.grad is None


def test_the_step_of_gdpo_through_the_door_is_the_public_function():
    lengths = [3, 1, 2, 5, 4, 2]
    step = advantages(RECIPES["gdpo"], reward_batch(REWARDS, GROUPS, lengths=lengths))
    assert torch.equal(step.values_B, gdpo_advantage(REWARDS, GROUPS, lengths))
    step = advantages(Recipe(), reward_batch(REWARDS, GROUPS))
    assert torch.equal(step.values_B, grpo_advantage(REWARDS, GROUPS))
