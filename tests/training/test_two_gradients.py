import math

import pytest
import torch
from method_cases import SHOWN
from training_cases import finish, outcome, trainer

from burnish.config.schema import Optimiser
from burnish.policy import gradient_overlap
from burnish.training.events import StepDone
from burnish.training.optimiser import MasterAdamW

NAMES = ("gradient/policy_norm", "gradient/sft_norm", "gradient/cosine")
KL = {"kind": "kl", "coefficient": 0.04}


def table(coefficient=0.3, every=0, **more):
    piece = {"kind": "sft", "coefficient": coefficient, "batch": 3, "gradients_every": every}
    return {
        "task": SHOWN,
        "steps": 4,
        "policy": {"auxiliary": [{**piece, **more}, KL]},
        "evaluation": {"prompts": 0},
    }


def metrics(folder, settings, *more, run):
    events = finish(trainer(folder, settings, *more, run=run))
    return [event.metrics for event in events if isinstance(event, StepDone)]


def sums_of_the_first_update(folder, run, settings, without=()):
    """The gradient sums of step 0, with the terms of `without` taken out of the recipe."""
    trained = trainer(folder, settings, {"steps": 1}, run=run)
    found = []
    step = trained.optimiser.step

    def keep(rate, norm):
        found.extend(trained.optimiser.copy_sums())
        step(rate, norm)

    trained.optimiser.step = keep
    if "sft" in without:
        trained.algorithm.imitation = None
    if "policy" in without:
        split = trained.algorithm.batches.split
        # Only demonstrations are passed without a choice of members.
        trained.algorithm.batches.split = lambda all, part=None, tokens=None: (
            split(all) if part is None else []
        )
    finish(trained)
    return found


def test_the_total_is_the_sum_of_its_parts(tmp_path):
    settings = table(0.3, every=1)
    total = sums_of_the_first_update(tmp_path, "total", settings)
    policy = sums_of_the_first_update(tmp_path, "policy", settings, without=["sft"])
    term = sums_of_the_first_update(tmp_path, "sft", settings, without=["policy"])
    unweighted = sums_of_the_first_update(tmp_path, "one", table(1.0), without=["policy"])
    for whole, first, second, plain in zip(total, policy, term, unweighted, strict=True):
        torch.testing.assert_close(whole, first + 0.3 * plain, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(second, 0.3 * plain, rtol=1e-4, atol=1e-7)
    expected = gradient_overlap(policy, unweighted)
    assert expected.cosine is not None
    assert min(expected.first_norm, expected.second_norm) > 0
    measured = metrics(tmp_path, settings, {"steps": 1}, run="measured")[0]
    found = [measured[name] for name in NAMES]
    assert found == pytest.approx(list(expected), rel=1e-4)
    # And the sides of the triangle: |total|^2 = |p|^2 + 2 c p.s + c^2 |s|^2.
    p, s, cosine = found
    whole = math.sqrt(p**2 + 2 * 0.3 * cosine * p * s + (0.3 * s) ** 2)
    assert measured["optimiser/gradient_norm"] == pytest.approx(whole, rel=1e-4)


FEW = {"steps": 1, "rollout": {"prompts": 1, "max_tokens": 3}}
PRECISIONS = [("float32", {"update": {"minibatches": 2}}), ("bfloat16", FEW)]


@pytest.mark.parametrize(("dtype", "size"), PRECISIONS)
def test_measuring_changes_no_bit_of_the_run(tmp_path, dtype, size):
    more = {"model": {"dtype": dtype}, **size}
    off = metrics(tmp_path, table(), more, run="off")
    on = metrics(tmp_path, table(every=1), more, run="on")
    assert all(name not in step for name in NAMES for step in off)
    assert any(name in step for name in NAMES for step in on)
    one, two = outcome(tmp_path / "off"), outcome(tmp_path / "on")
    for key in ("weights", "optimiser", "samples"):
        assert one[key] == two[key], f"{key} differs"
    assert set(two["metrics"]) - set(one["metrics"]) == set(NAMES)
    for name, curve in one["metrics"].items():
        assert two["metrics"][name] == curve, name


def test_gradients_are_compared_at_the_steps_asked_for(tmp_path):
    steps = metrics(tmp_path, table(every=3), run="third")
    assert [NAMES[1] in step for step in steps] == [True, False, False, True]


def test_a_weight_of_zero_leaves_out_what_it_cannot_say(tmp_path):
    """The last step of a linear schedule: the demonstrations have no gradient to look at."""
    steps = metrics(tmp_path, table(every=1, schedule="linear"), run="linear")
    assert NAMES[0] in steps[-1]
    assert not {*NAMES[1:]} & set(steps[-1])
    assert steps[-1][NAMES[0]] == pytest.approx(steps[-1]["optimiser/gradient_norm"], rel=1e-4)


def test_a_step_that_imitates_only_has_no_cosine(tmp_path):
    flat = {"rewards": [{"kind": "length", "unit": "characters", "max": 1000}]}
    steps = metrics(tmp_path, table(every=1), flat, run="flat")
    assert [step[NAMES[0]] for step in steps] == [0.0] * 4
    assert all(step[NAMES[1]] > 0 and NAMES[2] not in step for step in steps)
    norm = steps[0]["optimiser/gradient_norm"]
    assert 0.3 * steps[0][NAMES[1]] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_of_the_sums_leaves_no_trace(dtype):
    one, two = (torch.ones(2, dtype=dtype, requires_grad=True) for _ in range(2))
    optimiser = MasterAdamW([("one", one), ("two", two)], Optimiser())
    assert [t.tolist() for t in optimiser.copy_sums()] == [[0, 0], [0, 0]]
    assert one.grad is None
    (3 * one).sum().backward()
    optimiser.collect()
    first = optimiser.copy_sums()
    assert [t.tolist() for t in first] == [[3, 3], [0, 0]]
    (one + two).sum().backward()
    optimiser.collect()
    assert [t.tolist() for t in first] == [[3, 3], [0, 0]], "a copy, not a view"
    assert [t.tolist() for t in optimiser.copy_sums()] == [[4, 4], [1, 1]]
    optimiser.clear()
    assert [t.tolist() for t in optimiser.copy_sums()] == [[0, 0], [0, 0]]
