import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from policy_cases import RECIPES, loss_batch, reward_batch

from burnish.errors import UserError
from burnish.policy import (
    KL,
    Aggregate,
    BatchWhiten,
    Entropy,
    InformativeGroups,
    NormaliseThenSum,
    OverlongPenalty,
    Raw,
    Recipe,
    StaticRegion,
    SumThenNormalise,
    advantages,
    aggregate_loss,
    kl_penalty,
    log_ratio,
    loss,
    policy_loss,
)

NAN = math.nan


def test_the_first_door_by_hand():
    batch = reward_batch([[1], [0], [0.1], [0.1]], [0, 0, 1, 1], names=("right",))
    step = advantages(Recipe(advantage=SumThenNormalise(scale="none")), batch)
    assert step.values_B.tolist() == [0.5, -0.5, 0, 0]
    assert step.keep_B.tolist() == [True] * 4
    assert step.signal_B.tolist() == [True, True, False, False]
    assert step.weights_B.tolist() == [1.0] * 4
    assert step.low_B.tolist() == step.high_B.tolist() == [0.2] * 4
    assert step.diagnostics == pytest.approx(
        {
            "groups": 2,
            "constant_groups": 1,
            "useful_groups": 0.5,
            "kept": 1,
            "advantage_abs": 0.25,
            "reward/right/mean": 0.3,
            "reward/right/std": math.sqrt((0.49 + 0.09 + 0.04 + 0.04) / 3),
            "reward/right/missing": 0,
        }
    )


def test_diagnostics_leave_out_what_cannot_be_known():
    batch = reward_batch([[NAN, 2.0], [NAN, NAN]], [0, 0], names=("judge", "length"))
    found = advantages(Recipe(advantage=NormaliseThenSum()), batch).diagnostics
    assert "reward/judge/mean" not in found
    assert "reward/length/std" not in found
    assert found["reward/length/mean"] == 2.0
    assert found["reward/judge/missing"] == 1
    assert found["kept"] == 0.5


def test_overlong_penalty_moves_one_reward():
    rewards = [[0.0, 1.0], [0.0, 1.0]]
    more = {"lengths": [6, 8], "names": ("format", "right")}
    centre = SumThenNormalise(scale="none")
    piece = OverlongPenalty(limit=8, buffer=4, scale=2.0)
    step = advantages(
        Recipe(shaping=(piece,), advantage=centre), reward_batch(rewards, [0, 0], **more)
    )
    assert step.values_B.tolist() == [0.5, -0.5]
    assert (step.per_reward_BK[:, 1] == 0).all()
    named = OverlongPenalty(limit=8, buffer=4, reward="right")
    step = advantages(
        Recipe(shaping=(named,), advantage=centre), reward_batch(rewards, [0, 0], **more)
    )
    assert (step.per_reward_BK[:, 0] == 0).all()
    assert step.values_B.tolist() == [0.25, -0.25]
    weighted = reward_batch(rewards, [0, 0], weights=[0.0, 3.0], **more)
    step = advantages(Recipe(shaping=(piece,), advantage=centre), weighted)
    assert step.values_B.tolist() == [1.5, -1.5]


def test_overlong_penalty_without_a_limit_takes_the_token_budget():
    rewards, lengths = [[1.0], [1.0]], [6, 8]
    centre = SumThenNormalise(scale="none")
    recipe = Recipe(shaping=(OverlongPenalty(limit=0, buffer=4),), advantage=centre)
    batch = reward_batch(rewards, [0, 0], lengths=lengths)
    step = advantages(recipe, replace(batch, max_tokens=8))
    assert step.values_B.tolist() == [0.25, -0.25]
    with pytest.raises(UserError, match="limit is 0"):
        advantages(recipe, batch)


def test_overlong_penalty_refuses_a_reward_that_does_not_count():
    batch = reward_batch([[1.0, 0.0]], [0], weights=[1.0, 0.0], names=("right", "format"))
    for name, message in (("rihgt", "Did you mean 'right'"), ("format", "which has weight 0")):
        recipe = Recipe(shaping=(OverlongPenalty(limit=8, buffer=4, reward=name),))
        with pytest.raises(UserError, match=message):
            advantages(recipe, batch)


def test_informative_groups_are_kept_and_others_leave_the_loss():
    batch = reward_batch([[1], [0], [0.1], [0.1], [1], [NAN]], [0, 0, 1, 1, 2, 2])
    step = advantages(RECIPES["dapo"], batch)
    assert step.keep_B.tolist() == [True, True, False, False, False, False]
    assert step.high_B.tolist() == [0.28] * 6


@pytest.mark.parametrize("name", RECIPES)
def test_rollouts_without_any_reward_get_zero_and_are_not_kept(name):
    rewards = [[1.0, 0.2], [NAN, NAN], [0.0, 0.9], [0.3, 0.1]]
    step = advantages(RECIPES[name], reward_batch(rewards, [0] * 4))
    assert step.keep_B.tolist() == [True, False, True, True]
    assert step.values_B[1] == 0
    present = [0, 2, 3]
    without = advantages(RECIPES[name], reward_batch([rewards[i] for i in present], [0] * 3))
    torch.testing.assert_close(step.values_B[present], without.values_B)


def test_a_partly_missing_rollout_counts_only_where_rewards_are_normalised_first():
    rewards = [[1.0, NAN], [0.0, 0.5], [0.2, 0.9]]
    assert advantages(Recipe(), reward_batch(rewards, [0] * 3)).keep_B.tolist() == [
        False,
        True,
        True,
    ]
    step = advantages(Recipe(advantage=NormaliseThenSum()), reward_batch(rewards, [0] * 3))
    assert step.keep_B.all()
    assert step.values_B[0] > 0


@pytest.mark.parametrize("piece", [SumThenNormalise(), NormaliseThenSum(), Raw()])
def test_rewards_of_weight_zero_are_ignored_even_where_missing(piece):
    full = reward_batch([[1.0, NAN], [0.0, 5.0], [0.4, NAN]], [0] * 3, weights=[2.0, 0.0])
    step = advantages(Recipe(advantage=piece), full)
    alone = reward_batch([[1.0], [0.0], [0.4]], [0] * 3, weights=[2.0])
    torch.testing.assert_close(step.values_B, advantages(Recipe(advantage=piece), alone).values_B)
    assert step.keep_B.all()
    assert (step.per_reward_BK[:, 1] == 0).all()


def test_negative_weights_turn_a_reward_into_a_cost():
    batch = reward_batch([[1.0], [0.0]], [0, 0], weights=[-1.0])
    assert advantages(Recipe(), batch).values_B[0] < 0


def test_whitening_sees_only_kept_rollouts():
    recipe = Recipe(select=InformativeGroups(), post_scale=BatchWhiten(scope="rollout"))
    batch = reward_batch([[1], [0], [0], [0.1], [0.1], [NAN]], [0, 0, 0, 1, 1, 0])
    step = advantages(recipe, batch)
    kept = step.values_B[step.keep_B]
    assert kept.mean().item() == pytest.approx(0)
    assert kept.std().item() == pytest.approx(1)
    assert (step.values_B[~step.keep_B] == 0).all()


@settings(max_examples=40)
@given(st.sampled_from(sorted(RECIPES)), st.permutations(range(8)), st.permutations(range(5)))
def test_order_of_rollouts_and_labels_change_nothing(name, order, labels):
    rewards = torch.tensor(
        [[1, 0.1], [0, 0.5], [0.5, 0.1], [0.1, 0.3], [0.1, 0.3], [1, NAN], [0, 0], [NAN, NAN]],
        dtype=torch.float64,
    )
    groups, lengths = [0, 0, 0, 1, 1, 2, 2, 2], [1, 2, 3, 4, 5, 6, 7, 8]
    step = advantages(RECIPES[name], reward_batch(rewards, groups, lengths=lengths))
    moved = advantages(
        RECIPES[name],
        reward_batch(
            rewards[order], [labels[groups[i]] for i in order], lengths=[lengths[i] for i in order]
        ),
    )
    for key in ("values_B", "per_reward_BK", "keep_B", "signal_B", "low_B", "high_B", "weights_B"):
        torch.testing.assert_close(getattr(moved, key), getattr(step, key)[order])
    assert moved.diagnostics == pytest.approx(dict(step.diagnostics))


def test_the_door_of_one_reward_is_the_same_for_grpo_and_gdpo_but_for_whitening():
    batch = reward_batch([[1.0], [0.0], [0.5], [2.0]], [0, 0, 1, 1])
    gdpo = advantages(Recipe(advantage=NormaliseThenSum()), batch)
    assert torch.equal(gdpo.values_B, advantages(Recipe(), batch).values_B)


def test_an_empty_step_has_no_advantages():
    step = advantages(RECIPES["gdpo"], reward_batch(torch.zeros(0, 2), []))
    assert step.values_B.shape == (0,)
    assert step.diagnostics == {"groups": 0, "constant_groups": 0}


def test_rewards_that_all_weigh_nothing_are_refused():
    batch = reward_batch([[1.0], [0.0]], [0, 0], weights=[0.0], names=("right",))
    with pytest.raises(UserError, match=r"every reward \(right\) has weight 0; expected"):
        advantages(Recipe(), batch)


def test_the_second_door_adds_up_its_parts():
    batch = loss_batch()
    recipe = Recipe(auxiliary=(KL(0.5), Entropy(0.1), KL(0.25, "k1"), KL(0.0), Entropy(0.0)))
    found = loss(recipe, batch)
    assert set(found.parts) == {"surrogate", "kl", "entropy"}
    torch.testing.assert_close(sum(found.parts.values()), found.total.detach())
    assert not any(part.requires_grad for part in found.parts.values())
    entropy = aggregate_loss(
        batch.entropy_BT, batch.mask_BT, "seq-mean-token-mean", keep_B=batch.keep_B
    )
    torch.testing.assert_close(found.parts["entropy"], -0.1 * entropy)


def test_the_second_door_is_the_public_loss():
    batch = loss_batch()
    recipe = Recipe(ratio="sequence", dual_clip=3.0, aggregate=Aggregate(mode="token-mean"))
    found = loss(recipe, batch)
    core = policy_loss(
        batch.logp_BT,
        batch.old_logp_BT,
        batch.advantages_B,
        batch.mask_BT,
        ratio_level="sequence",
        dual_clip=3.0,
        keep=batch.keep_B,
    )
    assert torch.equal(found.total, core["loss"])
    assert torch.equal(found.clipped_share, core["clip_fraction"])
    assert torch.equal(found.ratio_max, core["ratio_max"])


@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_token"])
def test_the_corrected_kl_term_uses_the_recipes_ratio(ratio):
    batch = loss_batch()
    used_BT = batch.mask_BT & batch.keep_B[:, None]
    change_BT = log_ratio(batch.logp_BT, batch.old_logp_BT, used_BT, ratio)
    kl_BT = kl_penalty(batch.logp_BT, batch.ref_logp_BT) * change_BT.exp()
    expected = 0.5 * aggregate_loss(
        kl_BT, batch.mask_BT, "seq-mean-token-mean", keep_B=batch.keep_B
    )
    found = loss(Recipe(ratio=ratio, auxiliary=(KL(0.5, correction=True),)), batch).parts["kl"]
    torch.testing.assert_close(found, expected.detach())
    plain = loss(Recipe(ratio=ratio, auxiliary=(KL(0.5),)), batch).parts["kl"]
    assert not torch.allclose(found, plain)


@pytest.mark.parametrize("correction", [False, True])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_padding_cannot_poison_the_kl_term(estimator, correction):
    batch = loss_batch()
    recipe = Recipe(auxiliary=(KL(0.1, estimator, correction), Entropy(0.1)))
    hole = ~batch.mask_BT | ~batch.keep_B[:, None]
    leaf = batch.logp_BT.detach().clone().masked_fill(hole, -math.inf).requires_grad_(True)
    poisoned = replace(
        batch,
        logp_BT=leaf,
        ref_logp_BT=batch.ref_logp_BT.masked_fill(hole, NAN),
        entropy_BT=batch.entropy_BT.masked_fill(hole, NAN),
    )
    total = loss(recipe, poisoned).total
    total.backward()
    torch.testing.assert_close(total, loss(recipe, batch).total)
    assert (leaf.grad[hole] == 0).all()


def test_the_constant_length_comes_from_the_recipe_or_the_batch():
    batch = loss_batch()
    mode = "seq-mean-token-sum-norm"
    by_recipe = loss(Recipe(aggregate=Aggregate(mode=mode, max_tokens=10)), batch).total
    by_batch = loss(Recipe(aggregate=Aggregate(mode=mode)), replace(batch, max_tokens=20)).total
    torch.testing.assert_close(by_recipe, 2 * by_batch)
    with pytest.raises(UserError, match=r"policy.aggregate.max_tokens is 0; expected a length"):
        loss(Recipe(aggregate=Aggregate(mode=mode)), replace(batch, max_tokens=0))


def test_terms_without_their_inputs_are_refused():
    batch = replace(loss_batch(), ref_logp_BT=None, entropy_BT=None)
    with pytest.raises(ValueError, match="ref_logp_BT: got none, expected"):
        loss(Recipe(auxiliary=(KL(0.1),)), batch)
    with pytest.raises(ValueError, match="entropy_BT: got none, expected"):
        loss(Recipe(auxiliary=(Entropy(0.1),)), batch)
    assert loss(Recipe(auxiliary=(KL(0.0), Entropy(0.0))), batch).total.isfinite()


def test_bounds_of_the_first_door_reach_the_second():
    recipe = Recipe(trust_region=StaticRegion(low=0.0, high=0.0))
    step = advantages(recipe, reward_batch([[1.0], [0.0], [2.0]] * 2, [0] * 3 + [1] * 3))
    batch = replace(loss_batch(), advantages_B=step.values_B, low_B=step.low_B, high_B=step.high_B)
    wide = replace(batch, low_B=step.low_B + 0.9, high_B=step.high_B + 9)
    assert loss(recipe, batch).clipped_share > 0
    assert loss(recipe, wide).clipped_share == 0


def test_rounding_of_constant_rewards_that_fools_float32_statistics_gives_no_signal():
    values = torch.full((7,), 0.7)
    naive = (values - values.mean()) / (values.std() + 1e-6)
    assert naive.abs().max() > 0.01
    batch = reward_batch([*values[:, None].tolist(), [0.1], [0.9]], [0] * 7 + [1, 1])
    for recipe in RECIPES.values():
        assert (advantages(recipe, batch).values_B[:7] == 0).all()


def test_lengths_alone_do_not_make_a_group_informative():
    """All answers wrong, some too long: DAPO's filter looks at the reward, not at the penalty."""
    recipe = Recipe(
        shaping=(OverlongPenalty(limit=16, buffer=4),), select=InformativeGroups(refill=False)
    )
    batch = reward_batch([[0.0], [0.0], [1.0], [0.0]], [0, 0, 1, 1], lengths=[10, 16, 10, 16])
    step = advantages(recipe, batch)
    assert step.signal_B.tolist() == [False, False, True, True]
    assert step.keep_B.tolist() == [False, False, True, True]
