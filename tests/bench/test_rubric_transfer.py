"""Rubric transfer: who is helped by a rubric, and by another pair's."""

from __future__ import annotations

import anyio
import pytest

from burnish.bench.proxy_transfer import RubricCase, rubric_transfer
from burnish.errors import UserError
from burnish.rewards.judges.proxy_rubric import FunctionProxy

WORDS = ("red", "blue", "soft", "warm")
CASES = [RubricCase(f"q{word}", f"has {word}", "has none", 1, f"look for {word}") for word in WORDS]


def follows(question, first, second, rubric):
    """Finds the last word of the rubric in one of the two; guesses the first otherwise."""
    word = rubric.split()[-1]
    return 2 if word in second else 1


def deaf(question, first, second, rubric):
    return 1


def test_an_evaluator_that_reads_gains_and_one_that_does_not_gains_nothing():
    reads, ignores = anyio.run(
        rubric_transfer, CASES, [FunctionProxy(follows), FunctionProxy(deaf)]
    )
    assert reads.evaluator == "follows"
    assert reads.with_rubric.value == 1.0
    assert reads.shuffled.value == 0.5
    assert reads.without.value == 0.5
    assert reads.gain.value == 0.5
    assert (ignores.with_rubric.value, ignores.gain.value) == (0.5, 0.0)


def test_failures_are_counted_and_are_no_answers():
    def down(question, first, second, rubric):
        if question == "qred":
            raise OSError("down")
        return follows(question, first, second, rubric)

    (row,) = anyio.run(rubric_transfer, CASES, [FunctionProxy(down)])
    assert row.failed == 1
    assert row.with_rubric.size == 3
    with pytest.raises(UserError, match="cases"):
        anyio.run(rubric_transfer, [CASES[0]._replace(label=3), CASES[1]], [FunctionProxy(deaf)])
