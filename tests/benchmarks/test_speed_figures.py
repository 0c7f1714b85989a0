import _speed_figures as figures
import pytest
import torch
from _speed_floor import Weights, generation_floor, update_floor
from _speed_generation import tail_work
from _speed_memory import HeldTensors, UpdateMemory
from _speed_records import Rates, Tail
from msgspec.structs import replace
from speed_cases import RATES, SIZE, peer, result, row, step


def test_generation_takes_medians_and_its_peer_of_the_same_size():
    rows = [
        row("burnish", "groups", [1.0, 8.0, 2.0]),
        row("generate", "distinct", [40.0], tokens=500, measured_tokens=50, note="cut"),
        row("generate", "distinct", [1.0], dtype="bfloat16"),
        row("burnish", "groups", [4.0], batch=20),
    ]
    first, second = figures.generation(rows)
    assert first.tokens_per_s == 1000 / 2.0
    assert first.peer_tokens_per_s == 500 / 40.0
    assert first.ratio == pytest.approx(500 / 12.5)
    assert first.floor_share == 0.25
    assert (first.runs, first.peer_runs, first.note) == (3, 1, "cut")
    assert second.ratio is None
    assert "not measured" in second.note


def test_a_shortened_generate_gives_the_tail_a_lower_bound():
    rows = [
        row("burnish", "tail", [2.0], tokens=200),
        row("burnish", "full", [8.0]),
        row("generate", "full", [30.0], measured_tokens=50),
    ]
    (figure,) = figures.tail(rows)
    assert (figure.full_ratio, figure.peer_ratio) == (4.0, 15.0)
    assert figure.is_lower_bound
    assert figure.mean_tokens == 20
    (whole,) = figures.tail([rows[0], row("generate", "full", [30.0])])
    assert not whole.is_lower_bound
    assert whole.full_ratio is None


def test_step_leaves_warm_up_out_and_shows_the_first_step_alone():
    figure = figures.step(SIZE, result(9.0, 5.0, 1.0, 3.0), peer(50.0, 10.0, 14.0))
    assert (figure.first_s, figure.step_s, figure.runs) == (9.0, 2.0, 2)
    assert figure.rest_s == pytest.approx(2.0 - 1.0 - 0.2 - 0.4)
    assert (figure.peer_first_s, figure.peer_step_s, figure.ratio) == (50.0, 12.0, 6.0)
    assert (figure.mean_tokens, figure.peer_mean_tokens) == (5.0, 8.0)
    assert figure.floor_share == 0.25
    assert (figure.trained_share, figure.mismatch) == (0.5, 0.01)


def test_a_step_without_signal_has_no_mismatch():
    quiet = replace(result(), steps=[step(1.0, trained_tokens=0, mismatch=None)])
    figure = figures.step(SIZE, quiet, None)
    assert (figure.trained_share, figure.mismatch) == (0.0, None)


def test_step_says_what_became_of_the_peer():
    alone = figures.step(SIZE, result(1.0), None, "trl not installed")
    assert (alone.ratio, alone.note) == (None, "trl not installed")
    cut = figures.step(SIZE, result(1.0), peer(3.0, accumulate=4))
    assert "4 backward passes" in cut.note
    assert cut.ratio == 3.0


def test_learning_adds_up_every_step_and_memory_compares_forecast_with_seen():
    learned = figures.learn(SIZE, result(9.0, 1.0, 2.0))
    assert (learned.before, learned.after, learned.steps_s) == (0.25, 0.75, 12.0)
    seen = figures.memory(SIZE, result(1.0))
    assert seen.update_ratio == 0.75
    assert seen.peak_ratio == pytest.approx(1.1)
    assert figures.memory(SIZE, result(1.0, peak_kind="resident")).peak_ratio is None


WEIGHTS = Weights(body=100, head=50, kv_values=4, attention=8, itemsize=2)


def test_decoding_is_bound_by_bytes_when_few_rows_share_the_weights():
    # Reading: 300 B / 1000 B/s = 0.3 s; the prompt's 2 * (100 * 3 + 50) = 700 operations: 0.07 s.
    # Step 1: weights 300 B and 4 cached tokens x 4 values x 2 B = 332 B; one step after the first.
    assert generation_floor(WEIGHTS, RATES, [3], [(3, 2)]) == pytest.approx(0.3 + 0.332)
    assert generation_floor(WEIGHTS, RATES, [3], [(3, 1)]) == pytest.approx(0.3)


def test_decoding_is_bound_by_operations_when_bytes_are_free():
    free = Rates(bytes_per_s=1e12, operations_per_s=10_000.0)
    rows = [(3, 3), (3, 2)]
    reading = 700
    # Step 1: two rows, 4 cached each; step 2: the longer row alone, 5 cached.
    first = 2 * 150 * 2 + 4 * 8 * 8
    second = 2 * 150 * 1 + 4 * 8 * 5
    expected = (reading + first + second) / 10_000
    assert generation_floor(WEIGHTS, free, [3], rows) == pytest.approx(expected)


def test_an_update_does_six_operations_a_weight_and_token():
    assert update_floor(WEIGHTS, RATES, 10, 4) == pytest.approx(6 * (1000 + 200) / 10_000)


def test_the_tail_is_heavy_and_the_same_every_time():
    tail = Tail(512, 8, 512)
    work = tail_work(tail, [(i,) for i in range(64)], 8)
    assert len(work.prompts) == len(work.budgets) == 512
    assert (min(work.budgets), max(work.budgets)) == (8, 512)
    assert sorted(work.budgets)[256] <= 16
    assert sum(budget > 256 for budget in work.budgets) <= 25
    assert work == tail_work(tail, [(i,) for i in range(64)], 8)


def test_held_tensors_count_each_storage_once_and_forget_what_is_freed():
    weight = torch.ones(4, 4, requires_grad=True)
    held = HeldTensors({weight.untyped_storage().data_ptr()})
    with torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
        x = torch.ones(2, 4, requires_grad=True)
        y = (x @ weight) * x
        # x (32 bytes) once for both products, x @ weight (32 bytes); the weight is left out.
        assert held.live == held.peak == 64
        y.sum().backward()
        del y
        assert held.live == 0
        z = x * x
        assert held.live == 32
        del z
    assert held.peak == 64
    assert torch.equal(weight.grad, torch.full((4, 4), 2.0))


def test_a_watched_update_returns_what_it_returned_and_is_weighed():
    x = torch.ones(256, requires_grad=True)
    memory = UpdateMemory(torch.device("cpu"), [])

    def update(scale: float) -> float:
        (torch.exp(x) * scale).sum().backward()
        return 3.0

    assert memory.watch(update)(2.0) == 3.0
    assert memory.added >= 1024
    assert torch.allclose(x.grad, 2 * torch.exp(x))
