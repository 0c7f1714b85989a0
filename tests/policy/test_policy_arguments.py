import math

import pytest
import torch
from policy_cases import f64

from burnish.errors import UserError
from burnish.policy import (
    KL,
    SFT,
    Entropy,
    LossBatch,
    Normaliser,
    Recipe,
    ReferenceFrozen,
    RewardBatch,
    TriFactor,
    advantages,
    clip_cov_tokens,
    fit_reference_stats,
    gmpo_surrogate,
    grpo_advantage,
    loss,
    opo_advantage,
    policy_loss,
    reference_frozen_normalise,
    remax_advantage,
    rloo_advantage,
    token_covariance,
    tri_factor_weights,
    weakness_factor,
)


def test_a_spread_is_measured_however_far_from_zero_it_lies():
    near = fit_reference_stats([[0.0], [5.0], [3.0]])
    far = fit_reference_stats([[1e7], [1e7 + 5], [1e7 + 3]])
    assert far.sd_K.item() == pytest.approx(near.sd_K.item(), rel=1e-12)
    assert fit_reference_stats([[0.1]] * 7).sd_K.item() == 1e-3


def test_statistics_of_one_reward_are_not_those_of_two():
    two = f64([[1.0, 2.0], [3.0, 4.0]])
    one = fit_reference_stats(two[:, :1])
    with pytest.raises(UserError, match=r"mean: got"):
        reference_frozen_normalise(two, one.mean_K, one.sd_K)
    # A bare number is said of all rewards on purpose.
    assert reference_frozen_normalise(two, 0.0, 2.0).tolist() == [[0.5, 1.0], [1.5, 2.0]]


@pytest.mark.parametrize("eta", [150.0, 1e4, 1e100])
def test_weights_stay_finite_for_any_eta(eta):
    given = {
        "progress": [-5.0, 5.0, 0.0],
        "severity": [0.0, 3.0, 0.0],
        "violation_rate": [0.0, 0.5, 0.0],
        "normalised": f64([[1.0, 0.0, 0.3], [0.0, 1.0, 0.9], [0.5, 0.2, 0.1]]),
        "previous": [1.0, 1.0, 1.0],
    }
    weights = tri_factor_weights(**given, eta_weak=eta, beta=0.0)
    assert weights.isfinite().all()
    assert weights.mean().item() == pytest.approx(1.0)
    assert weights.argmax().item() == 0
    assert weakness_factor(given["progress"], eta).isfinite().all()


def test_two_overflowing_weaknesses_keep_their_ratio():
    found = tri_factor_weights(
        [-10.0, -9.999, 40.0],
        [0.0] * 3,
        [0.0] * 3,
        f64([[0.0] * 3] * 3),
        [1.0] * 3,
        100.0,
        beta=0.0,
    )
    # Far above the third, both would stand at w_max but for the scaling to mean 1.
    assert found[0] >= found[1] > found[2]


def test_what_stands_on_untrained_tokens_never_matters():
    logp = f64([[-1.0, -2.0], [-0.5, -0.7]])
    mask = f64([[1, 0], [1, 1]])
    spoilt = logp.clone()
    spoilt[0, 1] = math.nan
    clean = policy_loss(logp, logp - 0.1, f64([1.0, -1.0]), mask)
    found = policy_loss(spoilt, logp - 0.1, f64([1.0, -1.0]), mask)
    assert found["loss"] == clean["loss"]
    with pytest.raises(UserError, match=r"logp: \[0, 1\] is nan"):
        policy_loss(spoilt, logp - 0.1, f64([1.0, -1.0]), torch.ones(2, 2))


def test_a_batch_without_names_goes_by_numbers():
    recipe = Recipe(
        shaping=(ReferenceFrozen(),), weights=TriFactor(severity={"1": 2.0}, threshold={"1": 0.3})
    )
    rewards = f64([[1.0, 0.2], [0.0, 0.4], [1.0, 0.1], [0.5, 0.9]])
    named = advantages(recipe, batch(rewards, ("0", "1")))
    bare = advantages(recipe, batch(rewards))
    assert torch.equal(named.values_B, bare.values_B)
    assert named.diagnostics == bare.diagnostics
    assert {"weights/0/weight", "reference/1/saturated"} <= set(bare.diagnostics)


def test_labels_inside_tensors_are_compared_by_value():
    # Each tensor is an object of its own; as labels they once made four groups of one.
    labels = [torch.tensor(0), torch.tensor(0), torch.tensor(1), torch.tensor(1)]
    rewards = [1.0, 0.0, 1.0, 0.0]
    assert torch.equal(grpo_advantage(rewards, labels), grpo_advantage(rewards, [0, 0, 1, 1]))


def test_the_loss_of_a_training_step_looks_at_no_value():
    # Tensors on `meta` have shapes and no values: whoever reads one stops a GPU's queue, and fails here.
    with torch.device("meta"):
        logp = torch.zeros(3, 4, requires_grad=True)
        given = LossBatch(
            logp_BT=logp,
            old_logp_BT=torch.zeros(3, 4),
            mask_BT=torch.ones(3, 4),
            advantages_B=torch.zeros(3),
            low_B=torch.zeros(3),
            high_B=torch.zeros(3),
            keep_B=torch.ones(3),
            normaliser=Normaliser(12.0, 3.0),
            ref_logp_BT=torch.zeros(3, 4),
            entropy_BT=torch.zeros(3, 4),
            max_tokens=4,
            expert_logp_BT=torch.zeros(2, 4),
            expert_mask_BT=torch.ones(2, 4),
            buckets_B=torch.zeros(3),
        )
        terms = (KL(coefficient=0.1), Entropy(coefficient=0.1), SFT(coefficient=0.1))
        for ratio in ("token", "sequence", "sequence_token"):
            loss(Recipe(ratio=ratio, dual_clip=3.0, auxiliary=terms), given).total.backward()
    assert logp.grad.shape == (3, 4)


def batch(rewards_BK, names=()):
    count, rewards = rewards_BK.shape
    return RewardBatch(
        rewards_BK=rewards_BK,
        weights_K=torch.ones(rewards, dtype=torch.float64),
        groups_B=torch.zeros(count, dtype=torch.int64),
        lengths_B=torch.full((count,), 5),
        truncated_B=torch.zeros(count, dtype=torch.bool),
        names=names,
    )


HUGE = 1.7e308
FAR = f64([[HUGE, -HUGE]])
EACH = torch.ones_like(FAR)


def test_the_largest_numbers_give_finite_results():
    rewards, groups = [1e100, -1e100, 0.0], [0, 0, 0]
    for found in (
        grpo_advantage(rewards, groups, weights=[1e50]),
        rloo_advantage(rewards, groups, weights=[1e50]),
        opo_advantage(rewards, groups, [1, 2, 3], weights=[1e50]),
        remax_advantage(rewards, [-one for one in rewards], weights=[1e50]),
        token_covariance(rewards, rewards),
        gmpo_surrogate(EACH * 1e100, EACH * -1e100, EACH, EACH, EACH).loss_BT,
    ):
        assert found.isfinite().all()
        assert found.any()
    assert clip_cov_tokens([2.0, 3.0], seed=2**63 - 1).sum() == 1
