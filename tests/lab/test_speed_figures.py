import _speed_figures as figures
import pytest
import torch
from _speed_floor import Group, Weights, generation_floor, update_floor
from _speed_memory import HeldTensors, UpdateMemory
from _speed_records import Rates
from speed_cases import RATES, SIZE, peer, result, row


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
        row("burnish", "tail", [2.0], tokens=200, lengths=[2] * 5 + [10] * 4 + [100]),
        row("burnish", "full", [8.0]),
        row("generate", "full", [30.0], measured_tokens=50),
    ]
    (figure,) = figures.tail(rows)
    assert (figure.full_ratio, figure.peer_ratio) == (4.0, 15.0)
    assert figure.is_lower_bound
    assert (figure.budget, figure.shortest, figure.median, figure.longest) == (100, 2, 6, 100)
    assert figure.p90 == 10 + (100 - 10) * 0.1
    assert figure.note == ""
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


def test_learning_adds_up_every_step_and_memory_compares_forecast_with_seen():
    learned = figures.learn(SIZE, result(9.0, 1.0, 2.0))
    assert (learned.before, learned.after, learned.steps_s) == (0.25, 0.75, 12.0)
    seen = figures.memory(SIZE, result(1.0))
    assert (seen.update_parts, seen.update_ratio) == ("activations + gradients", 1.0)
    assert seen.peak_ratio == pytest.approx(1.1)
    held = figures.memory(SIZE, result(1.0, peak_kind="resident"))
    assert (held.update_parts, held.update_ratio, held.peak_ratio) == ("activations", 0.75, None)


WEIGHTS = Weights(body=100, head=50, kv_values=4, attention=8, itemsize=2)


def test_decoding_is_bound_by_bytes_when_few_rows_share_the_weights():
    # Reading: 300 B / 1000 B/s = 0.3 s; the prompt's 2 * (100 * 3 + 50) = 700 operations: 0.07 s.
    # Step 1: weights 300 B and 4 cached tokens x 4 values x 2 B = 332 B; one step after the first.
    assert generation_floor(WEIGHTS, RATES, [Group(3, [2])]) == pytest.approx(0.3 + 0.332)
    assert generation_floor(WEIGHTS, RATES, [Group(3, [1])]) == pytest.approx(0.3)


def test_rows_of_a_group_read_its_prompt_once_a_step_and_their_own_tokens_each():
    fast = Rates(bytes_per_s=1000.0, operations_per_s=1e12)
    # Step 1: three rows and the prompt's 10 tokens: 13 x 8 B; step 2: one row, 10 + 2: 12 x 8 B.
    together = generation_floor(WEIGHTS, fast, [Group(10, [2, 3, 2])])
    assert together == pytest.approx(0.3 + (0.3 + 0.104) + (0.3 + 0.096))
    # Apart each reads its own prompt: 33 and 12 tokens.
    apart = generation_floor(WEIGHTS, fast, [Group(10, [2]), Group(10, [3]), Group(10, [2])])
    assert apart == pytest.approx(0.3 + (0.3 + 0.264) + (0.3 + 0.096))


def test_decoding_is_bound_by_operations_when_bytes_are_free():
    free = Rates(bytes_per_s=1e12, operations_per_s=10_000.0)
    reading = 700
    # Step 1: two rows, 4 cached each; step 2: the longer row alone, 5 cached.
    first = 2 * 150 * 2 + 4 * 8 * 8
    second = 2 * 150 * 1 + 4 * 8 * 5
    expected = (reading + first + second) / 10_000
    assert generation_floor(WEIGHTS, free, [Group(3, [3, 2])]) == pytest.approx(expected)


def test_an_update_does_six_operations_a_weight_and_token():
    assert update_floor(WEIGHTS, RATES, 10, 4) == pytest.approx(6 * (1000 + 200) / 10_000)


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


class FakeAllocator:
    """A GPU's memory counters."""

    def __init__(self, monkeypatch) -> None:
        self.now = self.peak = 1000
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

    def reset(self, _) -> None:
        self.peak = self.now

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def test_on_a_gpu_what_the_first_update_keeps_counts_for_the_second(monkeypatch):
    gpu = FakeAllocator(monkeypatch)
    memory = UpdateMemory(torch.device("cuda"), [])

    def update(activations: int, sums: int) -> None:
        gpu.take(activations + 20)
        gpu.take(-activations)
        gpu.take(sums)
        gpu.take(-20)

    watched = memory.watch(update)
    watched(300, 40)
    assert memory.added == 320
    gpu.take(5000)  # A rollout's cache between two updates is not an update's.
    watched(300, 0)
    assert memory.added == 40 + 320
    assert memory.read_peak() == 1000 + 40 + 5000 + 320
