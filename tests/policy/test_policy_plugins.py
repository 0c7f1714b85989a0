import sys

import pytest
import torch
from policy_cases import loss_batch, reward_batch

from burnish.errors import UserError
from burnish.policy import Function, Recipe, advantages, loss
from burnish.policy.aggregate import aggregate_loss
from burnish.policy.plugins import SLOTS, load_function

PIECES = '''
"""Pieces from outside the package."""
import torch

def double(rewards_BK, batch, by=2.0):
    return rewards_BK * by

def centred(rewards_BK, groups_B, weights_K):
    values_B = rewards_BK @ weights_K
    return values_B - values_B.mean(), rewards_BK

def above(estimate, batch, floor=0.0):
    keep_B = estimate.values_B > floor
    return keep_B, torch.full_like(estimate.values_B, 0.5)

def wider(values_B, batch):
    return 0.1 * torch.ones_like(values_B), 0.1 + values_B.abs()

def shrink(batch, coefficient):
    return coefficient * (batch.logp_BT * batch.mask_BT).square()
'''


@pytest.fixture
def pieces(tmp_path):
    path = tmp_path / "pieces.py"
    path.write_text(PIECES)
    return path


def write(folder, body):
    path = folder / "own.py"
    path.write_text(f"import torch\n{body}")
    return f"{path}:piece"


BATCH = reward_batch([[1.0], [0.0], [4.0], [0.0]], [0, 0, 1, 1])


def test_every_slot_takes_a_function_from_outside(pieces):
    recipe = Recipe(
        shaping=(Function(f"{pieces}:double", {"by": 4.0}),),
        advantage=Function(f"{pieces}:centred"),
        select=Function(f"{pieces}:above", {"floor": 0.0}),
        trust_region=Function(f"{pieces}:wider"),
        auxiliary=(Function(f"{pieces}:shrink", {"coefficient": 0.5}),),
    )
    step = advantages(recipe, BATCH)
    # Shaped 4, 0, 16, 0; centred by the mean 5 to -1, -5, 11, -5; one kept, at half its weight.
    assert step.per_reward_BK.flatten().tolist() == [4, 0, 16, 0]
    assert step.keep_B.tolist() == [False, False, True, False]
    assert step.values_B.tolist() == [0, 0, 5.5, 0]
    assert step.weights_B.tolist() == [0.5] * 4
    torch.testing.assert_close(step.high_B, step.values_B.abs() + 0.1)
    batch = loss_batch()
    found = loss(recipe, batch)
    expected = aggregate_loss(
        0.5 * batch.logp_BT.square(), batch.mask_BT, recipe.aggregate.mode, keep_B=batch.keep_B
    )
    torch.testing.assert_close(found.parts["shrink"], expected.detach())
    torch.testing.assert_close(found.total, found.parts["surrogate"] + expected)


def test_a_module_on_the_path_works_like_a_file(pieces, monkeypatch):
    monkeypatch.syspath_prepend(pieces.parent)
    step = advantages(Recipe(shaping=(Function("pieces:double"),)), BATCH)
    assert step.values_B[0] > 0
    monkeypatch.delitem(sys.modules, "pieces")


def test_a_file_may_define_dataclasses(tmp_path):
    path = write(
        tmp_path,
        "from dataclasses import dataclass\n"
        "@dataclass\nclass State:\n    by: 'float' = 2.0\n"
        "def piece(rewards_BK, batch):\n    return rewards_BK * State().by\n",
    )
    assert advantages(Recipe(shaping=(Function(path),)), BATCH).keep_B.all()


def test_missing_rewards_stay_missing_through_a_function(pieces):
    batch = reward_batch([[1.0], [float("nan")], [0.0]], [0] * 3)
    step = advantages(Recipe(shaping=(Function(f"{pieces}:double"),)), batch)
    assert step.keep_B.tolist() == [True, False, True]


def test_a_select_function_cannot_bring_back_a_rollout_without_reward(tmp_path):
    path = write(
        tmp_path,
        "def piece(estimate, batch):\n"
        "    everyone = torch.ones(len(batch.groups_B))\n"
        "    return everyone.bool(), everyone\n",
    )
    batch = reward_batch([[1.0], [float("nan")], [0.0]], [0] * 3)
    assert advantages(Recipe(select=Function(path)), batch).keep_B.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("pieces.py", "expected 'file.py:name' or 'package.module:name'"),
        ("{folder}/piece.py:double", "does not exist.* Did you mean 'pieces.py'"),
        ("{folder}/pieces.py:duoble", "no function 'duoble'.* Did you mean 'double'"),
        ("{folder}/failing.py:piece", "cannot be imported: ZeroDivisionError: division by zero"),
        ("{folder}/pieces.py:centred", r"is centred\(rewards_BK, groups_B, weights_K\); expected"),
    ],
)
def test_a_path_that_does_not_fit_is_explained_in_one_line(pieces, path, message):
    (pieces.parent / "failing.py").write_text("1 / 0\n")
    piece = Function(path.format(folder=pieces.parent))
    with pytest.raises(UserError, match=message) as caught:
        advantages(Recipe(shaping=(piece,)), BATCH)
    assert "\n" not in str(caught.value)


def test_options_that_the_function_does_not_take_are_named(pieces):
    with pytest.raises(UserError, match=r"expected double\(rewards_BK, batch, bye=...\): .*'bye'"):
        load_function(Function(f"{pieces}:double", {"bye": 1}), "shaping")


@pytest.mark.parametrize(
    ("slot", "body", "message"),
    [
        ("shaping", "return rewards_BK[:1]", r"a tensor of shape \(1, 1\); expected .* \(4, 1\)"),
        ("shaping", "return rewards_BK / 0", "returned inf; expected finite or NaN"),
        ("advantage", "return rewards_BK", r"a tensor of shape \(4, 1\); expected two tensors"),
        (
            "advantage",
            "return rewards_BK[:, 0] * float('nan'), rewards_BK",
            "returned nan for rollout 0; expected finite numbers",
        ),
        (
            "select",
            "return estimate.values_B > 0, -torch.ones(4)",
            "returned a weight of -1.0; expected at least 0",
        ),
        (
            "trust_region",
            "return torch.ones(4), torch.ones(4)",
            "returned low 1 to 1 and high from 1; expected 0 <= low < 1",
        ),
    ],
)
def test_what_a_function_returns_is_checked(tmp_path, slot, body, message):
    path = write(tmp_path, f"def piece({', '.join(SLOTS[slot])}):\n    {body}\n")
    piece = Function(path)
    recipe = Recipe(**{slot: (piece,) if slot == "shaping" else piece})
    with pytest.raises(UserError, match=message) as caught:
        advantages(recipe, BATCH)
    assert f"{slot} function '{path}'" in str(caught.value)


def test_a_function_of_the_advantage_keeps_the_edge_rules(tmp_path):
    """Rounding noise on a constant group is no signal, and a missing reward is no NaN."""
    path = write(
        tmp_path,
        "def piece(rewards_BK, groups_B, weights_K):\n"
        "    noise_B = torch.arange(len(groups_B)) * 1e-17 + 1e-18\n"
        "    return rewards_BK[:, 0] - 0.4 + noise_B, rewards_BK\n",
    )
    batch = reward_batch([[0.7], [0.7], [1.0], [0.0], [float("nan")]], [0, 0, 1, 1, 1])
    step = advantages(Recipe(advantage=Function(path)), batch)
    assert step.values_B[:2].tolist() == [0.0, 0.0]
    assert step.signal_B.tolist() == [False, False, True, True, True]
    assert step.values_B[4] == 0
    assert step.keep_B.tolist() == [True, True, True, True, False]


def test_an_auxiliary_function_gives_a_value_a_token(tmp_path):
    path = write(tmp_path, "def piece(batch):\n    return batch.logp_BT.mean()\n")
    with pytest.raises(UserError, match=r"shape \(\); expected a tensor of shape \(6, 5\)"):
        loss(Recipe(auxiliary=(Function(path),)), loss_batch())


@pytest.mark.parametrize(
    "error",
    [
        'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")',
        'torch.AcceleratorError("CUDA error: out of memory")',
        'RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")',
    ],
)
def test_a_full_device_inside_a_function_is_not_put_down_to_it(tmp_path, error):
    path = write(tmp_path, f"def piece(rewards_BK, batch):\n    raise {error}")
    with pytest.raises(RuntimeError, match=r"out of memory|ALLOC_FAILED"):
        advantages(Recipe(shaping=(Function(path),)), BATCH)


def test_another_fault_of_the_device_is_told_as_the_function_failing(tmp_path):
    body = (
        'def piece(rewards_BK, batch):\n    raise torch.AcceleratorError("CUDA error: an assert")'
    )
    path = write(tmp_path, body)
    with pytest.raises(UserError, match="failed: AcceleratorError: CUDA error: an assert"):
        advantages(Recipe(shaping=(Function(path),)), BATCH)
