import dataclasses

import pytest
import torch
from policy_cases import f64

from burnish.policy import (
    PolicyState,
    Recipe,
    ReferenceFrozen,
    ReferenceStats,
    RewardBatch,
    TriFactor,
    WeightState,
    advantages,
)
from burnish.training.weighing import refreeze_note

NAN = float("nan")


def batch_of(rewards, weights=(1.0, 1.0)):
    count = len(rewards)
    return RewardBatch(
        rewards_BK=f64(rewards),
        weights_K=f64(weights),
        groups_B=torch.tensor([row // 2 for row in range(count)]),
        lengths_B=torch.ones(count),
        truncated_B=torch.zeros(count, dtype=torch.bool),
        names=("a", "b"),
    )


def start(**more):
    return PolicyState(
        reference=ReferenceStats(f64([0, 0]), f64([1, 1]), torch.tensor([9, 9])), **more
    )


# Three of four values of a stand at the clip of 5, none of b.
FAR = [[9.0, 1.0], [11.0, 0.0], [10.0, 1.0], [2.0, 0.0]] * 2


def weigh(above, rewards=FAR, state=None, weights=(1.0, 1.0)):
    recipe = Recipe(shaping=(ReferenceFrozen(refreeze_above=above),), weights=TriFactor())
    return advantages(recipe, batch_of(rewards, weights), state or start())


def test_by_default_nothing_is_measured_anew():
    step = weigh(1.0)
    assert step.diagnostics["reference/a/saturated"] == 0.75
    assert "reference/refrozen" not in step.diagnostics
    assert step.state.reference.mean_K.tolist() == [0, 0]
    worst = [[99.0, 99.0], [98.0, 97.0], [99.0, 95.0], [90.0, 91.0]]
    assert weigh(1.0, worst).state.reference.sd_K.tolist() == [1, 1]


def test_above_the_share_the_unit_of_all_rewards_is_that_of_the_batch():
    step = weigh(0.5)
    assert step.diagnostics["reference/refrozen"] == 1.0
    # The share that made it stale stays on record.
    assert step.diagnostics["reference/a/saturated"] == 0.75
    # a: mean 8, deviations 1, 3, 2, -6: sqrt(50 / 4). b: 0.5 and 0.5.
    reference = step.state.reference
    torch.testing.assert_close(reference.mean_K, f64([8, 0.5]))
    torch.testing.assert_close(reference.sd_K, f64([12.5**0.5, 0.5]))
    again = weigh(0.5, state=step.state)
    assert again.diagnostics["reference/refrozen"] == 0.0
    assert again.state.reference.mean_K.tolist() == reference.mean_K.tolist()


def test_at_the_share_itself_the_unit_stays():
    assert weigh(0.75).diagnostics["reference/refrozen"] == 0.0
    assert weigh(0.75).state.reference.mean_K.tolist() == [0, 0]


def test_progress_begins_anew_and_weights_and_violations_go_on():
    before = WeightState(f64([4.0, 0.0]), f64([0.25, 0.0]), f64([0.5, 1.5]))
    after = weigh(0.5, state=start(weights=before)).state.weights
    # In its own unit the batch has mean 0, of which the average would have kept 0.8 * 4.
    torch.testing.assert_close(after.progress_K, f64([0.0, 0.0]))
    torch.testing.assert_close(after.violation_K, f64([0.2, 0.0]))
    assert 0.5 < after.weights_K[0] < 1.0
    kept = weigh(1.0, state=start(weights=before)).state.weights
    # Clipped: 5, 5, 5, 2 has mean 4.25.
    torch.testing.assert_close(kept.progress_K, f64([0.8 * 4 + 0.2 * 4.25, 0.1]))


def test_a_batch_that_lacks_a_reward_cannot_give_it_a_unit():
    silent = [[a, NAN] for a, _ in FAR]
    step = weigh(0.5, silent)
    assert step.diagnostics["reference/refrozen"] == 0.0
    assert step.state.reference.mean_K.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("of_b", "why"),
    [
        ([1.0] * 8, "constant"),
        ([1.0, 1.0005] * 4, "varies by less than the floor"),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, NAN], "seven values"),
        ([4.0] + [NAN] * 7, "one value"),
    ],
)
def test_a_reward_without_a_unit_in_the_batch_keeps_its_own(of_b, why):
    step = weigh(0.5, [[a, b] for (a, _), b in zip(FAR, of_b, strict=True)])
    reference = step.state.reference
    torch.testing.assert_close(reference.mean_K, f64([8, 0]))
    torch.testing.assert_close(reference.sd_K, f64([12.5**0.5, 1]))
    assert reference.count_K.tolist() == [8, 9]
    found = {name: step.diagnostics[f"reference/{name}/refrozen"] for name in "ab"}
    assert found == {"a": 1.0, "b": 0.0}
    # A hundredth of it is later a hundredth of a deviation, not ten of them.
    later = weigh(0.5, [[8.0 + row, 1.0 + row / 100] for row in range(8)], step.state)
    assert later.diagnostics["reference/b/saturated"] == 0.0


def test_a_reward_that_became_constant_at_the_clip_moves_no_unit_again_and_again():
    step = weigh(0.5, [[9.0, b] for _, b in FAR])
    assert step.diagnostics["reference/a/saturated"] == 1.0
    assert step.diagnostics["reference/refrozen"] == 0.0
    assert step.state.reference.mean_K.tolist() == [0, 0]


def test_a_silent_reward_of_weight_zero_blocks_nothing_and_keeps_its_unit():
    step = weigh(0.5, [[a, NAN] for a, _ in FAR], weights=(1.0, 0.0))
    assert step.diagnostics["reference/refrozen"] == 1.0
    torch.testing.assert_close(step.state.reference.mean_K, f64([8, 0]))
    torch.testing.assert_close(step.state.reference.sd_K, f64([12.5**0.5, 1]))


def test_the_note_names_the_reward_that_was_stale_and_those_that_kept_their_unit():
    # b is always at the clip and of weight 0, so it is not what made the unit stale.
    batch = batch_of([[a, 9.0] for a, _ in FAR], (1.0, 0.0))
    recipe = Recipe(shaping=(ReferenceFrozen(refreeze_above=0.5),), weights=TriFactor())
    line, data = refreeze_note(batch, advantages(recipe, batch, start()))
    assert line == (
        "75% of the values of reward 'a' stood at the clip: the unit of the rewards was measured "
        "again on 8 answers of this step; b kept the old one (constant here, or fewer than 8 values)"
    )
    assert (data["kept"], data["mean"], data["count"]) == (
        ["b"],
        {"a": 8, "b": 0},
        {"a": 8, "b": 9},
    )
    whole, data = refreeze_note(batch_of(FAR), weigh(0.5))
    assert whole.endswith("8 answers of this step")
    assert data["kept"] == []


def test_a_reward_of_weight_zero_makes_nothing_stale():
    assert weigh(0.5, weights=(0.0, 1.0)).diagnostics["reference/refrozen"] == 0.0


def test_the_new_unit_survives_a_checkpoint():
    state = weigh(0.5).state
    read = PolicyState.from_tensors(state.tensors())
    for field in dataclasses.fields(PolicyState):
        assert (getattr(read, field.name) is None) == (getattr(state, field.name) is None)
    assert torch.equal(read.reference.sd_K, state.reference.sd_K)
