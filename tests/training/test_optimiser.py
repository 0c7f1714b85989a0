import pytest
import torch

from burnish.config.schema import Optimiser
from burnish.training import optimiser as optimiser_module
from burnish.training.optimiser import MasterAdamW, learning_rate, spread


def test_warm_up_then_linear_fall():
    config = Optimiser(learning_rate=1.0, warmup_steps=2, schedule="linear", final_ratio=0.1)
    rates = [learning_rate(config, step, 6) for step in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.7, 0.4, 0.1])


def test_cosine_is_half_way_down_in_the_middle():
    config = Optimiser(learning_rate=2.0, schedule="cosine")
    rates = [learning_rate(config, step, 5) for step in range(5)]
    assert rates == pytest.approx([2.0, 1.70710678, 1.0, 0.29289322, 0.0])


def test_constant_ignores_the_number_of_steps():
    assert learning_rate(Optimiser(learning_rate=3.0), 999, 5) == 3.0


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_float32_follows_torch(decay):
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(7, 3))
    theirs = torch.nn.Parameter(ours.detach().clone())
    config = Optimiser(weight_decay=decay, clip_norm=0.0, beta2=0.99)
    mine = MasterAdamW([("w", ours)], config)
    peer = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), weight_decay=decay)
    for _ in range(5):
        gradient = torch.randn(7, 3)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.collect()
        mine.step(0.01, mine.gradient_norm())
        peer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_master_weights_keep_steps_that_half_precision_would_lose():
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimiser = MasterAdamW([("w", weight)], Optimiser(clip_norm=0.0))
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimiser.collect()
        optimiser.step(1e-4, optimiser.gradient_norm())
    start = spread(torch.ones(4, dtype=torch.bfloat16), seed=0)
    torch.testing.assert_close(optimiser.masters[0], start - 0.01, rtol=0, atol=1e-4)
    assert torch.equal(weight, optimiser.masters[0].bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_weights_begin_anywhere_within_what_rounds_to_the_model(dtype):
    plain = torch.randn(4000, generator=torch.Generator().manual_seed(1)) / 20
    weights = torch.cat((plain, torch.tensor([0.0, -0.0, 1.0, -0.25, 1e-30, 6e4]))).to(dtype)
    masters = spread(weights, seed=3)
    assert torch.equal(masters.to(dtype), weights)  # the model starts as it was
    assert (masters != weights.float()).float().mean() > 0.99
    assert torch.equal(masters, spread(weights, seed=3))


@pytest.mark.parametrize("one", [1.0, -0.25])
def test_master_weights_of_a_power_of_two_are_drawn_evenly_on_both_sides(one):
    """Norms begin as ones: the numbers towards 0 lie half as far as those away from it."""
    weights = torch.full((30_000,), one, dtype=torch.bfloat16)
    away = (spread(weights, seed=1) / one - 1) * 2**7  # in gaps of the side away from 0
    assert away.min() == pytest.approx(-0.25, abs=1e-3)
    assert away.max() == pytest.approx(0.5, abs=1e-3)
    assert away.mean() == pytest.approx(0.125, abs=0.01)
    assert (away < 0).float().mean() == pytest.approx(1 / 3, abs=0.02)


def test_master_weights_are_drawn_in_parts(monkeypatch):
    monkeypatch.setattr(optimiser_module, "_SPREAD_AT_ONCE", 7)
    weights = torch.linspace(-1, 1, 60).view(10, 6).t().bfloat16()  # not contiguous
    masters = spread(weights, seed=2)
    assert masters.shape == weights.shape
    assert torch.equal(masters.bfloat16(), weights)
    assert (masters != weights.float()).float().mean() > 0.9


def test_a_step_far_below_the_distance_of_half_precision_moves_the_model_by_the_right_mean():
    weight = torch.nn.Parameter((torch.randn(200_000) / 20).bfloat16())
    before = weight.detach().float().clone()
    optimiser = MasterAdamW([("w", weight)], Optimiser(clip_norm=0.0))
    weight.grad = torch.ones_like(weight)
    optimiser.collect()
    optimiser.step(3e-5, optimiser.gradient_norm())
    moved = (weight.detach().float() - before).mean().item()
    alone = ((before - 3e-5).bfloat16().float() - before).mean().item()
    assert moved == pytest.approx(-3e-5, rel=0.1)
    assert abs(alone) < 0.5e-5  # from master weights on the grid: an eighth of the step


def test_gradients_of_micro_batches_add_up_in_float32():
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimiser = MasterAdamW([("w", weight)], Optimiser())
    for value in (256.0, 1.0, 1.0):
        weight.grad = torch.tensor([value], dtype=torch.bfloat16)
        optimiser.collect()
    assert optimiser.sums[0].item() == 258.0  # in bfloat16 256 + 1 stays 256


def test_clipping_scales_to_the_norm():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimiser = MasterAdamW([("w", weight)], Optimiser(clip_norm=1.0))
    weight.grad = torch.tensor([3.0, 4.0])
    optimiser.collect()
    norm = optimiser.gradient_norm()
    assert float(norm) == pytest.approx(5.0)
    optimiser.step(0.1, norm)
    torch.testing.assert_close(optimiser.first[0], torch.tensor([0.06, 0.08]))


def test_state_round_trip_is_bit_exact():
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(5, dtype=torch.bfloat16))
    one = MasterAdamW([("w", weight)], Optimiser())
    weight.grad = torch.randn(5, dtype=torch.bfloat16)
    one.collect()
    one.step(0.01, one.gradient_norm())
    saved = {name: t.clone() for name, t in one.state().items()}
    other_weight = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    other = MasterAdamW([("w", other_weight)], Optimiser())
    other.load(saved)
    assert torch.equal(other_weight, weight)
    for name, tensor in other.state().items():
        assert torch.equal(tensor, saved[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_start_anew_after_a_step_and_after_clear(dtype):
    weight = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    idle = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    optimiser = MasterAdamW([("w", weight), ("idle", idle)], Optimiser(clip_norm=0.0))

    def collect(value):
        (weight * value).sum().backward()
        optimiser.collect()
        return [total.tolist() for total in optimiser.sums]

    assert collect(2.0) == [[2.0, 2.0], [0.0]]
    assert collect(3.0) == [[5.0, 5.0], [0.0]]
    optimiser.clear()
    assert [total.tolist() for total in optimiser.sums] == [[0.0, 0.0], [0.0]]
    assert collect(7.0) == [[7.0, 7.0], [0.0]]
    optimiser.step(0.1, optimiser.gradient_norm())
    assert collect(1.0) == [[1.0, 1.0], [0.0]]


def test_a_norm_within_the_limit_changes_nothing():
    moments = []
    for limit in (0.0, 100.0):
        weight = torch.nn.Parameter(torch.zeros(2))
        optimiser = MasterAdamW([("w", weight)], Optimiser(clip_norm=limit))
        weight.grad = torch.tensor([0.3, 0.7])
        optimiser.collect()
        optimiser.step(0.1, optimiser.gradient_norm())
        moments.append((optimiser.first[0], optimiser.second[0], weight.detach()))
    assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))


@pytest.mark.parametrize(
    ("decay", "shrinks"),
    [
        ("all", {"model.embed_tokens.weight", "q_proj.weight", "norm.weight", "q_proj.bias"}),
        ("matrices", {"q_proj.weight"}),
        ("no_embeddings", {"q_proj.weight", "norm.weight", "q_proj.bias"}),
    ],
)
def test_weight_decay_reaches_only_what_it_is_for(decay, shrinks):
    shapes = {
        "model.embed_tokens.weight": (3, 2),
        "q_proj.weight": (2, 2),
        "norm.weight": (2,),
        "q_proj.bias": (2,),
    }
    named = {name: torch.ones(shape, requires_grad=True) for name, shape in shapes.items()}
    config = Optimiser(weight_decay=0.5, decay=decay, clip_norm=0.0)
    optimiser = MasterAdamW(named.items(), config)
    optimiser.step(0.1, optimiser.gradient_norm())
    for name, parameter in named.items():
        # Without a gradient AdamW only decays: 1 - rate x decay.
        wanted = 1 - 0.1 * 0.5 if name in shrinks else 1.0
        torch.testing.assert_close(parameter.detach(), torch.full(shapes[name], wanted))
