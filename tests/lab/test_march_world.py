"""MARCH's world of symbols: exact claims, blind checkers, arms that run; and the detectors' draw."""

import copy
import random

import pytest
import torch
from lab.march import world


def test_an_answer_is_parsed_up_to_the_first_thing_that_is_no_fact():
    memory = world.Memory(0)
    facts = memory.world(random.Random(1)).facts
    symbols = [symbol for fact in facts for symbol in fact]
    assert world.parse([*symbols, world.END]) == facts
    assert world.parse([*symbols[:6], world.END, *symbols[6:]]) == facts[:2]
    assert world.parse([*symbols[:3], *symbols[:2], world.FIRST_N]) == facts[:1]  # said twice
    assert world.parse([]) == []


def test_sampling_with_a_cache_is_sampling_without():
    torch.manual_seed(0)
    model = world.Transformer(width=16)
    prompts = torch.randint(world.FIRST_E, world.VOCABULARY, (3, 10))
    answers = model.sample(prompts, torch.Generator().manual_seed(1))
    cache = [()] * 2
    rows = torch.cat([prompts, answers], 1)
    steps = [model(rows[:, :10], cache)[:, -1]]
    steps += [model(rows[:, : at + 1], cache)[:, -1] for at in range(10, 12)]
    whole = model(rows)
    for place, logits in enumerate(steps):
        torch.testing.assert_close(logits, whole[:, 9 + place], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def taught():
    """A writer that states enough for rewards to differ."""
    return world.teach(world.Memory(0), 0.3, 0, 120)


@pytest.mark.parametrize("arm", [*world.ARMS, "solver_sum", "joint_gdpo", "joint_gd2po"])
def test_every_arm_learns_and_the_base_does_not(arm, taught):
    memory, model = world.Memory(0), copy.deepcopy(taught)
    rules = world.arm_of(arm)
    before = [parameter.clone() for parameter in model.parameters()]
    curve = world.train(model, memory, rules, 0, 0 if arm == "base" else 1)
    moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert len(curve) == (arm != "base")
    assert moved == (arm != "base")
    found = world.measure(model, memory, worlds=4)
    assert set(world.COLUMNS) <= set(found)
