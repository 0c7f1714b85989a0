import json
from types import SimpleNamespace

import pytest
import torch

from burnish.training import latent_rows
from burnish.training.latent_rows import TOGETHER, CapacityGate, pass_rates


class Start:
    """A start model whose answers to a question are right or wrong as its list says, in turn."""

    device = torch.device("cpu")

    def __init__(self, plans):
        self.plans, self.given = plans, dict.fromkeys(plans, 0)

    def answer(self, records, draw):
        found = []
        for record in records:
            name = record.task.id
            plan = self.plans[name]
            found.append(plan[self.given[name] % len(plan)])
            self.given[name] += 1
        return found

    def mark(self, record, answer):
        return float(answer)


def records_of(names):
    return [SimpleNamespace(task=SimpleNamespace(id=name)) for name in names]


def seed(name, turn):
    return abs(len(name) * 31 + turn)


@pytest.mark.parametrize(
    ("answers", "samples", "threshold", "rate", "asked"),
    [
        ([0], 8, 0.5, 0.0, 4),  # four wrong: at most half can be right
        ([1], 8, 0.5, 1.0, 5),  # five right: more than half
        ([1, 0], 8, 0.5, 0.5, 8),
        ([0, 0, 1], 4, 0.5, 0.0, 2),
        ([1, 1, 0], 4, 0.5, 0.75, 4),
        ([0], 8, 0.0, 0.0, 8),  # hard only where none is right: all must be heard
        ([1], 8, 0.0, 1.0, 1),
        ([1], 4, 1.0, 1.0, 1),  # every question is hard: one answer for the record
        ([0], 4, -0.1, 0.0, 1),  # none is
        ([1], 1, 0.5, 1.0, 1),
    ],
)
def test_a_question_is_asked_until_its_side_is_known(answers, samples, threshold, rate, asked):
    start = Start({"a": answers})
    (found,) = pass_rates(start, records_of("a"), samples, threshold, seed)
    assert found == pytest.approx(rate)
    assert start.given["a"] == asked


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.3, 0.5, 0.6, 1.0])
def test_the_side_is_that_of_all_answers(samples, threshold):
    draw = torch.Generator().manual_seed(7)
    for _ in range(20):
        plan = torch.randint(0, 2, (samples,), generator=draw).tolist()
        (rate,) = pass_rates(Start({"a": plan}), records_of("a"), samples, threshold, seed)
        assert (rate <= threshold) == (sum(plan) / samples <= threshold), plan


def measured(tmp_path, plans, most=256, total=None, name="a"):
    names = [f"q{n}" for n in range(total or len(plans))]
    start = Start({one: plans[n % len(plans)] for n, one in enumerate(names)})
    gate = CapacityGate(4, 0.5)
    file = tmp_path / f"{name}.json"
    gate.read(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latent_rows, "MOST_ASKED", most)
        gate.measure(start, records_of(names), seed, file)
    return gate, start, names


def test_it_ends_where_nearly_all_questions_are_alike(tmp_path):
    gate, _, names = measured(tmp_path, [[0]], total=4800)
    assert len(gate.rates) == 80  # none of 80 is otherwise: at most 4.6 % are
    assert gate.rest_is_hard is True
    assert gate.is_hard(names[-1]) is True
    easy, *_ = measured(tmp_path, [[1]], total=4800, name="easy")
    assert easy.rest_is_hard is False


def test_a_mixture_is_measured_up_to_the_limit_and_the_rest_is_like_most(tmp_path):
    gate, _, names = measured(tmp_path, [[0], [0], [1]], most=96, total=300)
    assert len(gate.rates) == 96
    assert gate.rest_is_hard is True
    assert gate.is_hard("q2") is False
    assert gate.is_hard(names[-1]) is True


def test_fewer_questions_than_the_limit_leave_no_rest(tmp_path):
    gate, *_ = measured(tmp_path, [[0]], total=20)
    assert len(gate.rates) == 20
    assert gate.rest_is_hard is None


@pytest.mark.parametrize("stopped", [1, 2, 4])
def test_a_stopped_measurement_continues_exactly(tmp_path, stopped):
    plans = [[0], [1], [0, 1]]
    whole, start, _ = measured(tmp_path, plans, most=96, total=300, name="whole")
    measured(tmp_path, plans, most=stopped * TOGETHER, total=300, name="parts")
    assert len(json.loads((tmp_path / "parts.json").read_text())) == stopped * TOGETHER
    parts, again, _ = measured(tmp_path, plans, most=96, total=300, name="parts")
    assert (parts.rates, parts.rest_is_hard) == (whole.rates, whole.rest_is_hard)
    assert again.given["q0"] == 0  # what is known is not asked again
    assert start.given["q0"] == 2
