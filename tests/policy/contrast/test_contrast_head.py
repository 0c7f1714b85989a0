import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.errors import GuardTripped, StoreError
from burnish.policy.contrast.component import pool_hidden
from burnish.policy.contrast.head import ContrastiveHead, HeadState, embed, head_step, initial_head
from burnish.policy.contrast.losses import ContrastRule, contrastive_losses

WIDTH, SIZE = 12, 5
KINDS = ["linear", "mlp"]


def rollouts(seed=0, groups=4, size=8):
    """Pooled states in which right rollouts share a direction under a lot of noise."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.rand(groups * size, generator=draw) < 0.5
    hidden = torch.randn(groups * size, WIDTH, generator=draw)
    hidden[:, 0] += labels * 1.5
    return hidden, labels, [i // size for i in range(groups * size)]


def same(left, right):
    left, right = left.tensors(), right.tensors()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_makes_the_head(kind):
    head = initial_head(64, 32, kind, seed=3)
    before = torch.get_rng_state()
    assert same(head, initial_head(64, 32, kind, seed=3))
    assert torch.equal(torch.get_rng_state(), before)
    assert not same(head, initial_head(64, 32, kind, seed=4))
    assert (head.kind, head.width, head.size, head.steps) == (kind, 64, 32, 0)
    bound = 1 / math.sqrt(64)
    for weight in head.weight.values():
        assert weight.dtype == torch.float32
        assert weight.abs().max() <= bound
        # A uniform number within the bound has deviation bound / sqrt(3).
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_an_embedding_by_hand():
    empty = torch.zeros(2, 2)
    linear = HeadState(
        {"output": torch.tensor([[1.0, 0.0], [0.0, 2.0]])}, {"output": empty}, {"output": empty}
    )
    # (3, 2) becomes (3, 4), of length 5.
    torch.testing.assert_close(
        embed(linear, torch.tensor([[3.0, 2.0]])), torch.tensor([[0.6, 0.8]])
    )
    layers = {"hidden": torch.eye(2), "output": torch.tensor([[1.0, 1.0], [0.0, 1.0]])}
    zeros = dict.fromkeys(layers, empty)
    # ReLU takes (-7, 2) to (0, 2), the output to (2, 2).
    found = embed(HeadState(layers, zeros, zeros), torch.tensor([[-7.0, 2.0]]))
    torch.testing.assert_close(found, torch.full((1, 2), math.sqrt(0.5)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["infonce", "supcon_out"])
def test_steps_are_those_of_torchs_adamw(kind, loss):
    state = initial_head(WIDTH, SIZE, kind, seed=1)
    twin = {layer: values.clone().requires_grad_(True) for layer, values in state.weight.items()}
    optimiser = torch.optim.AdamW(
        list(twin.values()), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999)
    )
    for step in range(5):
        hidden, labels, groups = rollouts(seed=step)
        state = head_step(state, hidden, labels, groups, ContrastRule(loss), seed=step).state
        inner = torch.relu(hidden @ twin["hidden"].T) if kind == "mlp" else hidden
        mean = contrastive_losses(inner @ twin["output"].T, labels, groups, loss, seed=step).mean
        optimiser.zero_grad()
        mean.backward()
        optimiser.step()
    assert state.steps == 5
    for layer, values in twin.items():
        torch.testing.assert_close(state.weight[layer], values.detach(), rtol=1e-5, atol=1e-6)


def test_losses_are_those_of_the_head_before_its_update():
    state = initial_head(WIDTH, SIZE, seed=1)
    hidden, labels, groups = rollouts()
    copy = {name: values.clone() for name, values in state.tensors().items()}
    step = head_step(state, hidden, labels, groups)
    expected = contrastive_losses(embed(state, hidden), labels, groups)
    torch.testing.assert_close(step.losses.per_sample, expected.per_sample, rtol=1e-4, atol=1e-5)
    assert not step.losses.per_sample.requires_grad
    assert not step.losses.mean.requires_grad
    assert not same(step.state, state)
    # The given state is a value: nobody wrote into it.
    assert all(torch.equal(values, copy[name]) for name, values in state.tensors().items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_head_gives_losses_and_stays(kind):
    state = initial_head(WIDTH, SIZE, kind)
    given = rollouts()
    frozen = head_step(state, *given, frozen=True)
    assert frozen.state is state
    torch.testing.assert_close(frozen.losses.per_sample, head_step(state, *given).losses.per_sample)
    assert frozen.losses.mean > 0
    assert "head_grad_norm" not in frozen.metrics


def test_without_anchors_there_is_no_step():
    state = initial_head(WIDTH, SIZE)
    hidden, labels, groups = rollouts()
    step = head_step(state, hidden, torch.ones_like(labels), groups)
    assert step.state is state
    assert step.metrics == {"anchors": 0.0, "anchor_share": 0.0, "dropped_nan": 0.0}
    nothing = head_step(state, hidden[:0], labels[:0], [])
    assert nothing.metrics == {"anchors": 0.0, "dropped_nan": 0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_state_is_dropped_and_counted_and_poisons_nothing(kind):
    state = initial_head(WIDTH, SIZE, kind)
    hidden, labels, groups = rollouts()
    labels[2] = True
    kept = [i for i in range(len(groups)) if i not in (2, 9)]
    clean = head_step(
        state, hidden[kept], labels[kept], [groups[i] for i in kept], keys=torch.tensor(kept)
    )
    hidden[2], hidden[9, 3] = math.nan, -math.inf
    step = head_step(state, hidden, labels, groups)
    assert step.metrics["dropped_nan"] == 2
    assert step.losses.per_sample[[2, 9]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(step.losses.per_sample[kept], clean.losses.per_sample)
    for layer, values in step.state.weight.items():
        torch.testing.assert_close(values, clean.state.weight[layer], rtol=1e-4, atol=1e-5)
    assert embed(state, hidden)[2].tolist() == [0.0] * SIZE


def test_metrics_say_what_happened():
    # The head passes two features on: right rollouts at (1, 0) and (0.6, 0.8), wrong ones at (0, 1).
    eye, empty = {"output": torch.eye(2)}, {"output": torch.zeros(2, 2)}
    hidden = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [math.nan, 0.0]])
    rule = ContrastRule("soft_nn", temperature=0.1)
    step = head_step(HeadState(eye, empty, empty), hidden, [1, 1, 0, 1], [0] * 4, rule)
    first, second = math.log(1 + math.exp(-6)), math.log(1 + math.exp(2))
    expected = {
        "anchors": 2,
        "anchor_share": 0.5,
        "dropped_nan": 1,
        "loss": (first + second) / 2,
        "floor_share": 0.0,
        "positive_similarity": 0.6,
        "negative_similarity": (0 + 0.8) / 2,
    }
    norm = step.metrics.pop("head_grad_norm")
    assert step.metrics == pytest.approx(expected, rel=1e-5)
    assert norm > 0
    floored = head_step(
        HeadState(eye, empty, empty), hidden, [1, 1, 0, 1], [0] * 4, rule, lam=0.3, floor=-0.5
    )
    # The losses are 0.002 and 2.13: 0.3 * 2.13 is beyond the floor.
    assert floored.metrics["floor_share"] == 0.5


def test_training_draws_right_rollouts_together():
    state = initial_head(WIDTH, SIZE, seed=2)
    rule = ContrastRule("supcon_out", temperature=0.2)
    held_out = rollouts(seed=999, groups=16)
    before = head_step(state, *held_out, rule, frozen=True).metrics
    for step in range(150):
        state = head_step(state, *rollouts(seed=step), rule, learning_rate=5e-3).state
    after = head_step(state, *held_out, rule, frozen=True).metrics
    assert after["loss"] < before["loss"] - 0.3
    gaps = [m["positive_similarity"] - m["negative_similarity"] for m in (before, after)]
    assert gaps[1] > gaps[0] + 0.1


def test_the_policy_receives_no_gradient():
    policy = torch.nn.Linear(3, WIDTH)
    _, labels, groups = rollouts()
    states = policy(torch.randn(len(groups), 4, 3))
    pooled = pool_hidden(states, torch.ones(len(groups), 4))
    assert not pooled.requires_grad
    # Nor does a caller who forgot to detach pass one on.
    step = head_step(initial_head(WIDTH, SIZE), states.mean(1), labels, groups)
    assert step.state.steps == 1
    assert all(parameter.grad is None for parameter in policy.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_inside_no_grad_is_the_same_step(mode):
    state = initial_head(WIDTH, SIZE)
    outside = head_step(state, *rollouts())
    with mode():
        hidden, labels, groups = rollouts()
        inside = head_step(state, hidden * 1.0, labels, groups)
    assert same(inside.state, outside.state)
    assert not same(inside.state, state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_head_goes_on_bit_for_bit(kind, tmp_path):
    head = ContrastiveHead(WIDTH, SIZE, kind, seed=7)
    for step in range(3):
        head.step(*rollouts(seed=step), seed=step)
    head.save(tmp_path / "head.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]
    resumed = ContrastiveHead.load(tmp_path / "head.safetensors")
    assert (resumed.state.kind, resumed.state.steps) == (kind, 3)
    assert same(resumed.state, head.state)
    went_on, came_back = head.step(*rollouts(seed=9)), resumed.step(*rollouts(seed=9))
    assert torch.equal(went_on.losses.per_sample, came_back.losses.per_sample)
    assert same(head.state, resumed.state)
    # Moments and count matter: a head with the same weights alone takes another step.
    fresh = HeadState(
        came_back.state.weight, *(initial_head(WIDTH, SIZE, kind).first,) * 2, steps=0
    )
    assert not same(
        head_step(fresh, *rollouts(seed=10)).state,
        head_step(came_back.state, *rollouts(seed=10)).state,
    )


def test_a_head_is_called_for_unit_vectors():
    head = ContrastiveHead(D=WIDTH, d=SIZE)
    hidden, _, _ = rollouts()
    lengths = head(hidden.to(torch.bfloat16)).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(len(hidden)))
    assert torch.equal(head.to("cpu")(hidden), embed(head.state, hidden))


def test_a_file_that_is_no_head_is_named(tmp_path):
    path = tmp_path / "head.safetensors"
    with pytest.raises(StoreError, match=r"head\.safetensors could not be read"):
        ContrastiveHead.load(path)
    path.write_bytes(b"not a head")
    with pytest.raises(StoreError, match=r"expected a file that ContrastiveHead\.save wrote"):
        ContrastiveHead.load(path)
    ContrastiveHead(WIDTH, SIZE).save(path)
    tensors = load_file(path)
    save_file({"weight.output": tensors["weight.output"]}, path)
    with pytest.raises(StoreError, match=r"got weight.output, expected first.output"):
        ContrastiveHead.load(path)


def test_a_head_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    target = tmp_path / "taken"
    target.mkdir()
    (target / "file").touch()
    with pytest.raises(StoreError, match="could not be written"):
        ContrastiveHead(WIDTH, SIZE).save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(("temperature", "stage"), [(1e-42, "loss"), (1e-34, "gradient")])
def test_a_number_that_is_not_finite_reaches_no_weight(temperature, stage):
    # The largest float32 is 3e38: scores of 1e42 are infinite; those of 1e34 are not, but their
    # slope in weights of 1e-7 is.
    state = initial_head(WIDTH, SIZE)
    small = {"output": state.weight["output"] * 1e-6}
    rule = ContrastRule("soft_nn", temperature)
    with pytest.raises(GuardTripped, match=f"{stage} guard: the contrastive head") as caught:
        head_step(HeadState(small, state.first, state.second), *rollouts(), rule)
    assert caught.value.stage == stage
