import inspect
import math
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from peer_libraries import close
from policy_cases import reward_batch

from burnish.errors import ArgumentError
from burnish.policy import (
    BatchNormalise,
    BatchWhiten,
    GreedyBaseline,
    InformativeGroups,
    LeaveOneOut,
    LengthWeightedBaseline,
    OverlongPenalty,
    Recipe,
    SumThenNormalise,
    advantages,
    opo_advantage,
    reinforce_pp_advantage,
    remax_advantage,
    rloo_advantage,
)

NAN = math.nan
SEEDS = range(20)


def drawn(seed, groups=3, samples=4):
    """Rewards (B,), groups and lengths of a random step."""
    draw = torch.Generator().manual_seed(seed)
    rewards_B = torch.rand(groups * samples, generator=draw, dtype=torch.float64)
    lengths_B = torch.randint(1, 7, (groups * samples,), generator=draw)
    return rewards_B, [i // samples for i in range(groups * samples)], lengths_B


def by_token(rewards_B, lengths_B):
    """A reward on the last token of each rollout, and the mask, as verl has them."""
    places_T = torch.arange(int(lengths_B.max()))
    mask_BT = places_T[None] < lengths_B[:, None]
    is_last_BT = places_T[None] == lengths_B[:, None] - 1
    return (rewards_B[:, None] * is_last_BT).double(), mask_BT.double()


def first_token(found, lengths_B):
    """The advantage that verl gives to all tokens of a rollout."""
    values_BT, _ = found
    places_T = torch.arange(values_BT.shape[1])
    mask_BT = places_T[None] < lengths_B[:, None]
    assert (values_BT == values_BT[:, :1] * mask_BT).all()
    return values_BT[:, 0]


def test_rloo_by_hand():
    # Siblings of 1: (0, 2), mean 1; of 0: (1, 2), mean 1.5; of 2: (1, 0), mean 0.5.
    assert rloo_advantage([1.0, 0.0, 2.0], [0, 0, 0]).tolist() == [0.0, -1.5, 1.5]
    assert rloo_advantage([[1.0, 4.0], [0.0, 4.0]], [0, 0], weights=[1.0, 0.5]).tolist() == [1, -1]


def test_opo_by_hand():
    # (1 * 1 + 3 * 0) / 4 = 0.25.
    assert opo_advantage([1.0, 0.0], [0, 0], [1, 3]).tolist() == [0.75, -0.25]
    assert opo_advantage([1.0, 0.0], [0, 0], [5, 5]).tolist() == [0.5, -0.5]
    assert opo_advantage([1.0, 0.0], [0, 0], [0, 0]).tolist() == [0.5, -0.5]


def test_reinforce_pp_by_hand():
    # Tokens 1, 0, 0, 0: mean 0.25, variance 0.25, so deviations of 1.5 and -0.5.
    found = reinforce_pp_advantage([1.0, 0.0], [1, 3], eps=0.0)
    close(found, torch.tensor([1.5, -0.5], dtype=torch.float64))
    by_rollout = reinforce_pp_advantage([1.0, 0.0], scope="rollout", eps=0.0)
    close(by_rollout, torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(2))


def test_remax_by_hand():
    assert remax_advantage([1.0, 0.0, 1.0], [0.5, 0.5, 1.0]).tolist() == [0.5, -0.5, 0.0]
    found = remax_advantage([[1.0, 2.0]], [[0.0, 4.0]], weights=[1.0, 0.5])
    assert found.tolist() == [0.0]
    assert remax_advantage([0.1 + 0.2], [0.3]).tolist() == [0.0], "rounding is no advantage"


@pytest.mark.parametrize("rule", [rloo_advantage, lambda r, g: opo_advantage(r, g, [3] * len(r))])
def test_edges_inside_groups(rule):
    assert rule([0.7], [0]).tolist() == [0.0], "a group of one"
    assert (rule([0.7] * 8, [0] * 8) == 0).all(), "equal rewards"
    assert rule([1.0, 0.0, NAN], [0, 0, 0]).tolist() == [*rule([1.0, 0.0], [0, 0]).tolist(), 0.0]
    assert rule([1.0, NAN], [0, 0]).tolist() == [0.0, 0.0], "one reward is left"
    assert rule([], []).tolist() == []


def test_edges_over_the_batch():
    assert reinforce_pp_advantage([0.7] * 4, [1] * 4).tolist() == [0.0] * 4
    assert reinforce_pp_advantage([0.7], [1]).tolist() == [0.0]
    missing = reinforce_pp_advantage([1.0, 0.0, NAN], [1, 1, 9])
    assert missing[:2].tolist() == reinforce_pp_advantage([1.0, 0.0], [1, 1]).tolist()
    assert missing[2] == 0
    assert remax_advantage([1.0, NAN, 1.0], [NAN, 0.0, 0.0]).tolist() == [0.0, 0.0, 1.0]


def test_a_group_of_one_and_a_group_of_equal_rewards_learn_from_the_batch():
    step = advantages(
        Recipe(advantage=BatchNormalise()), reward_batch([[1.0], [1.0], [0.0]], [0, 0, 1])
    )
    assert step.signal_B.all()
    assert step.values_B[0] == step.values_B[1] > 0 > step.values_B[2]


def remax_batch(rewards, baselines, groups):
    batch = reward_batch(rewards, groups)
    return replace(batch, baselines_BK=torch.tensor(baselines, dtype=torch.float64))


def test_without_a_baseline_a_prompt_is_left_out():
    batch = remax_batch([[1.0], [0.0], [1.0], [1.0]], [[0.0], [0.0], [NAN], [NAN]], [0, 0, 1, 1])
    step = advantages(Recipe(advantage=GreedyBaseline()), batch)
    assert step.keep_B.tolist() == [True, True, False, False]
    assert step.values_B.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert step.per_reward_BK[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(ArgumentError, match="baselines_BK: got none"):
        advantages(Recipe(advantage=GreedyBaseline()), reward_batch([[1.0]], [0]))
    with pytest.raises(ArgumentError, match="got 1, expected one for each of the 2"):
        advantages(Recipe(advantage=GreedyBaseline()), remax_batch([[1.0]], [[1.0, 2.0]], [0]))


def test_a_reward_of_weight_0_has_no_part_in_remax():
    batch = remax_batch([[1.0, 5.0]], [[0.0, NAN]], [0])
    batch = replace(batch, weights_K=torch.tensor([1.0, 0.0], dtype=torch.float64))
    step = advantages(Recipe(advantage=GreedyBaseline()), batch)
    assert step.values_B.tolist() == [1.0]
    assert step.per_reward_BK.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("component", [LeaveOneOut(), LengthWeightedBaseline(), BatchNormalise()])
def test_a_component_is_its_function_on_the_weighted_sum(component):
    rewards_BK = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rewards_BK[3, 1] = NAN
    groups, lengths = [0] * 4 + [1] * 4, [1, 2, 3, 4, 5, 6, 7, 8]
    batch = reward_batch(rewards_BK, groups, weights=[1.0, 0.5], lengths=lengths)
    step = advantages(Recipe(advantage=component), batch)
    expected = {
        LeaveOneOut: lambda r: rloo_advantage(r, groups, weights=[1.0, 0.5]),
        LengthWeightedBaseline: lambda r: opo_advantage(r, groups, lengths, weights=[1.0, 0.5]),
        BatchNormalise: lambda r: reinforce_pp_advantage(r, lengths, weights=[1.0, 0.5]),
    }[type(component)](rewards_BK)
    assert step.values_B.tolist() == expected.tolist()
    assert step.keep_B.tolist() == [i != 3 for i in range(8)]


def test_contradictions_are_refused():
    with pytest.raises(ArgumentError, match=r"use shaping = \[\]"):
        Recipe(advantage=GreedyBaseline(), shaping=(OverlongPenalty(limit=8, buffer=4),))
    with pytest.raises(ArgumentError, match="'batch_normalise' learns"):
        Recipe(advantage=BatchNormalise(), select=InformativeGroups())


@given(st.integers(0, 200), st.floats(-50, 50))
def test_a_shift_of_all_rewards_changes_nothing(seed, shift):
    rewards_B, groups, lengths_B = drawn(seed)
    for rule in (
        lambda r: rloo_advantage(r, groups),
        lambda r: opo_advantage(r, groups, lengths_B),
        lambda r: reinforce_pp_advantage(r, lengths_B),
        lambda r: remax_advantage(r, r.roll(1)),
    ):
        close(rule(rewards_B + shift), rule(rewards_B), rtol=1e-7, atol=1e-9)


@given(st.integers(0, 200), st.randoms(use_true_random=False))
def test_a_permuted_step_has_permuted_advantages(seed, rng):
    rewards_B, groups, lengths_B = drawn(seed)
    order = list(range(len(groups)))
    rng.shuffle(order)
    shuffled = [groups[i] for i in order]
    close(rloo_advantage(rewards_B[order], shuffled), rloo_advantage(rewards_B, groups)[order])
    close(
        opo_advantage(rewards_B[order], shuffled, lengths_B[order]),
        opo_advantage(rewards_B, groups, lengths_B)[order],
    )
    close(
        reinforce_pp_advantage(rewards_B[order], lengths_B[order]),
        reinforce_pp_advantage(rewards_B, lengths_B)[order],
    )


@given(st.integers(0, 200))
def test_what_each_baseline_sums_to(seed):
    rewards_B, groups, lengths_B = drawn(seed)
    zero_Q = torch.zeros(3, dtype=torch.float64)
    by_group = torch.tensor(groups)
    close(zero_Q.index_add(0, by_group, rloo_advantage(rewards_B, groups)), zero_Q)
    tokens_B = opo_advantage(rewards_B, groups, lengths_B) * lengths_B
    close(zero_Q.index_add(0, by_group, tokens_B), zero_Q)
    whitened_B = reinforce_pp_advantage(rewards_B, lengths_B, eps=0.0)
    close((whitened_B * lengths_B).sum(), zero_Q.sum())
    squares = (whitened_B.square() * lengths_B).sum() / (lengths_B.sum() - 1)
    close(squares, torch.ones((), dtype=torch.float64))


def test_rloo_of_verl(algorithms):
    for seed in SEEDS:
        rewards_B, groups, lengths_B = drawn(seed)
        given = (*by_token(rewards_B, lengths_B), np.array(groups))
        theirs = first_token(algorithms.compute_rloo_outcome_advantage(*given), lengths_B)
        close(rloo_advantage(rewards_B, groups), theirs)
        vectorised = algorithms.compute_rloo_vectorized_outcome_advantage(*given)
        close(rloo_advantage(rewards_B, groups), first_token(vectorised, lengths_B))
    one = torch.tensor([[0.7]]), torch.ones(1, 1), np.array([0])
    assert algorithms.compute_rloo_outcome_advantage(*one)[0].item() == pytest.approx(0.7)


def trl_rloo(rewards_BK, samples, *, normalise=False):
    """The advantages of TRL's own lines, which stand inside a long method."""
    pytest.importorskip("trl")
    from trl.trainer.rloo_trainer import RLOOTrainer

    source = inspect.getsource(RLOOTrainer._generate_and_score_completions)
    begin = source.index("        unscorable_mask = ")
    end = source.index("        advantages = torch.nan_to_num(advantages, nan=0.0)\n")
    told = SimpleNamespace(
        reward_weights=torch.ones(rewards_BK.shape[1]),
        reward_clip_range=None,
        beta=0.0,
        normalize_advantages=normalise,
    )
    names = {
        **vars(inspect.getmodule(RLOOTrainer)),
        "self": told,
        "rewards_per_func": rewards_BK.clone(),
        "num_generations": samples,
        "device": torch.device("cpu"),
    }
    lines = textwrap.dedent(source[begin:end]) + "advantages = torch.nan_to_num(advantages)\n"
    exec(lines, names)
    return names["advantages"]


def test_rloo_of_trl():
    for seed in SEEDS:
        rewards_B, groups, _ = drawn(seed)
        rewards_B[seed % 12] = NAN
        theirs = trl_rloo(rewards_B[:, None], 4)
        close(rloo_advantage(rewards_B, groups), theirs)
        batch = reward_batch(rewards_B[:, None], groups)
        recipe = Recipe(advantage=LeaveOneOut(), post_scale=BatchWhiten(scope="rollout"))
        normalised = trl_rloo(rewards_B[:, None], 4, normalise=True)
        # TRL adds 1e-4 to the deviation.
        close(advantages(recipe, batch).values_B, normalised, rtol=2e-3, atol=1e-6)


def test_opo_of_verl(algorithms):
    for seed in SEEDS:
        rewards_B, groups, lengths_B = drawn(seed)
        given = (*by_token(rewards_B, lengths_B), np.array(groups))
        theirs = first_token(algorithms.compute_opo_outcome_advantage(*given), lengths_B)
        close(opo_advantage(rewards_B, groups, lengths_B), theirs)


def test_reinforce_pp_of_verl(algorithms):
    for seed in SEEDS:
        rewards_B, groups, lengths_B = drawn(seed)
        given = by_token(rewards_B, lengths_B)
        config = SimpleNamespace(gamma=1.0)
        found = algorithms.compute_reinforce_plus_plus_outcome_advantage(*given, config)
        close(reinforce_pp_advantage(rewards_B, lengths_B), found[0][:, 0], rtol=1e-6, atol=1e-7)
        step = advantages(
            Recipe(advantage=BatchNormalise()),
            reward_batch(rewards_B[:, None], groups, lengths=lengths_B.tolist()),
        )
        close(step.values_B, found[0][:, 0], rtol=1e-6, atol=1e-7)


def test_the_baseline_form_of_reinforce_pp_of_verl(algorithms):
    recipe = Recipe(advantage=SumThenNormalise(scale="none"), post_scale=BatchWhiten())
    published = replace_whitening(recipe, ignore_zero_signal=False)
    for seed in SEEDS:
        rewards_B, groups, lengths_B = drawn(seed)
        given = (*by_token(rewards_B, lengths_B), np.array(groups))
        theirs = algorithms.compute_reinforce_plus_plus_baseline_outcome_advantage(*given)
        theirs_B = first_token(theirs, lengths_B)
        batch = reward_batch(rewards_B[:, None], groups, lengths=lengths_B.tolist())
        close(advantages(recipe, batch).values_B, theirs_B, rtol=1e-6, atol=1e-7)
        rewards_B[:4] = 1.0
        given = (*by_token(rewards_B, lengths_B), np.array(groups))
        theirs = algorithms.compute_reinforce_plus_plus_baseline_outcome_advantage(*given)
        batch = reward_batch(rewards_B[:, None], groups, lengths=lengths_B.tolist())
        theirs_B = first_token(theirs, lengths_B)
        close(advantages(published, batch).values_B, theirs_B, rtol=1e-6, atol=1e-7)
        assert (advantages(recipe, batch).values_B[:4] == 0).all()


def replace_whitening(recipe, **settings):
    return Recipe(advantage=recipe.advantage, post_scale=BatchWhiten(**settings))


def test_remax_of_verl(algorithms):
    for seed in SEEDS:
        rewards_B, groups, lengths_B = drawn(seed)
        baselines_B = drawn(seed + 100)[0]
        rewards_BT, mask_BT = by_token(rewards_B, lengths_B)
        found = algorithms.compute_remax_outcome_advantage(rewards_BT, baselines_B, mask_BT)
        theirs_B = first_token(found, lengths_B)
        close(remax_advantage(rewards_B, baselines_B), theirs_B)
        batch = remax_batch(rewards_B[:, None], baselines_B[:, None].tolist(), groups)
        close(advantages(Recipe(advantage=GreedyBaseline()), batch).values_B, theirs_B)
