"""Requests with checkable demands: repeatable, without contradictions, readable by the checks."""

import random

import pytest
from recipes.skill_rm.demands import KINDS, make

from burnish.rewards.checks.instructions import read_instructions


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_every_request_states_what_is_checked(most):
    for seed in range(300):
        row = make(random.Random(seed), most)
        assert row == make(random.Random(seed), most)
        instructions = read_instructions(row["instruction_id_list"], row["kwargs"])
        assert 1 <= len(instructions) <= min(most, len(KINDS))
        assert len({one.id for one in instructions}) == len(instructions)
        for one in instructions:
            for value in one.arguments.values():
                words = value if isinstance(value, list) else [value]
                assert all(str(word) in row["prompt"] for word in words)
