from dataclasses import replace

import pytest
import torch
from policy_cases import loss_batch, reward_batch

from burnish.errors import UserError
from burnish.policy import Function, Recipe, Stepwise, advantages, loss
from burnish.training.weighing import Segmenter, pad_segments

LENGTHS = [3, 5, 1, 4]
BATCH = reward_batch([[1.0], [0.0], [4.0], [3.0]], [0, 0, 1, 1], lengths=LENGTHS, names=("right",))


class Letters:
    """A token a letter."""

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_without_headings_the_whole_answer_is_one_section():
    segment = Segmenter(Letters(), ())
    assert segment.number([ord(c) for c in "yes\nwhy: so"]) == [0] * 11
    assert segment.number([]) == []
    # With a heading the first token alone is section 0, as before.
    assert Segmenter(Letters(), ("why:",)).number([ord(c) for c in "yes"]) == [0, -1, -1]


def own(folder, body):
    path = folder / "own.py"
    path.write_text(f"import torch\n{body}")
    return Recipe(advantage=Function(f"{path}:piece"))


def spans():
    segment = Segmenter(Letters(), ())
    return pad_segments([segment.number([97] * length) for length in LENGTHS])


@pytest.mark.parametrize("credit", ["local", "to_go"])
def test_one_span_has_the_loss_and_the_gradient_of_an_outcome_reward(credit):
    outcome = advantages(Recipe(), BATCH)
    recipe = Recipe(advantage=Stepwise(rewards=("right",), credit=credit))
    span = advantages(recipe, replace(BATCH, segments_BT=spans()))
    assert span.values_B.shape == (4, 5)
    for row, length, value in zip(span.values_B, LENGTHS, outcome.values_B, strict=True):
        assert row[:length].tolist() == [value.item()] * length
        assert row[length:].tolist() == [0.0] * (5 - length)
    torch.testing.assert_close(span.per_rollout(), outcome.values_B)
    losses = []
    for values in (outcome, span):
        batch = loss_batch(rollouts=4)
        mask_BT = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
        batch = replace(
            batch,
            mask_BT=mask_BT if values.counted_BT is None else mask_BT & values.counted_BT,
            advantages_B=values.values_B,
            low_B=values.low_B,
            high_B=values.high_B,
            keep_B=values.keep_B,
        )
        total = loss(Recipe(), batch).total
        (gradient,) = torch.autograd.grad(total, batch.logp_BT)
        losses.append((total, gradient))
    torch.testing.assert_close(losses[0][0], losses[1][0], rtol=0, atol=1e-15)
    torch.testing.assert_close(losses[0][1], losses[1][1], rtol=0, atol=1e-15)


DISCOUNTED = """
def piece(rewards_BK, groups_B, weights_K, batch):
    width = int(batch.lengths_B.max())
    mask_BT = batch.has_token(width)
    behind_BT = (batch.lengths_B[:, None] - 1 - torch.arange(width)).clamp(min=0)
    return (rewards_BK - 2) * 0.5 ** behind_BT * mask_BT, rewards_BK
"""


def test_a_function_may_give_one_advantage_a_token(tmp_path):
    step = advantages(own(tmp_path, DISCOUNTED), BATCH)
    assert step.values_B.tolist() == [
        [-0.25, -0.5, -1.0, 0.0, 0.0],
        [-0.125, -0.25, -0.5, -1.0, -2.0],
        [2.0, 0.0, 0.0, 0.0, 0.0],
        [0.125, 0.25, 0.5, 1.0, 0.0],
    ]
    assert step.counted_BT.sum(1).tolist() == LENGTHS
    assert step.per_rollout().tolist() == pytest.approx([-1.75 / 3, -3.875 / 5, 2.0, 1.875 / 4])
    assert step.low_B.shape == step.values_B.shape
    assert step.signal_B.all()


def test_rollouts_without_a_reward_and_flat_groups_get_nothing_a_token(tmp_path):
    nan = float("nan")
    batch = reward_batch(
        [[1.0], [nan], [3.0], [3.0]], [0, 0, 1, 1], lengths=LENGTHS, names=("right",)
    )
    ones = "def piece(rewards_BK, groups_B, weights_K, batch):\n    mask_BT = batch.has_token(5)\n"
    ones += "    return mask_BT.double(), rewards_BK.nan_to_num()\n"
    step = advantages(own(tmp_path, ones), batch)
    assert step.values_B[1:].abs().sum() == 0
    assert not step.keep_B[1]


def test_shape_mask_and_numbers_are_checked(tmp_path):
    start = "def piece(rewards_BK, groups_B, weights_K, batch):\n    values = "
    cases = {
        "torch.ones(4, 6)": r"shape \(4, 6\); expected a tensor of shape \(4,\), one value a rollout, or \(4, 5\)",
        "torch.ones(3, 5)": r"shape \(3, 5\); expected",
        "torch.ones(4, 5)": "returned 1 for token 3 of rollout 0, which has 3 tokens; expected 0",
        "batch.has_token(5) * float('nan')": "returned nan for",
    }
    for number, (body, message) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        recipe = own(folder, f"{start}{body}\n    return values, rewards_BK\n")
        with pytest.raises(UserError, match=message):
            advantages(recipe, BATCH)
