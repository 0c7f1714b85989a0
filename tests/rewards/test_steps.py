"""Steps of an answer: every character belongs to one, and the rule is the same for all who cut."""

import itertools

import pytest
from hypothesis import given, strategies as st

from burnish.errors import ArgumentError
from burnish.rewards.checks.sections import find_steps
from burnish.rewards.models import step_value

TEXT = "First.\n\nSecond:\n- a\n \n\n  Third.  \n\n"


def texts(text, *how):
    return [text[step.start : step.end].strip() for step in find_steps(text, *how)]


def test_steps_by_hand():
    assert texts(TEXT) == ["First.", "Second:\n- a", "Third."]
    assert texts(TEXT, "lines") == ["First.", "Second:", "- a", "Third."]
    text = "Well.\nrule: x\nwhy: y\nrule: again"
    assert texts(text, "headings", ("rule:", "why:")) == ["Well.\nrule: x", "why: y", "rule: again"]
    assert texts("no heading", "headings", ("rule:",)) == ["no heading"]
    assert texts("") == texts(" \n\n ") == []


@given(st.text(alphabet="ab \n\t", max_size=30), st.sampled_from(["blank_lines", "lines"]))
def test_steps_cover_the_text_and_none_is_blank(text, split):
    found = find_steps(text, split)
    assert bool(found) == bool(text.strip())
    if found:
        assert found[0].start == 0
        assert found[-1].end == len(text)
        assert all(a.end == b.start for a, b in itertools.pairwise(found))
        assert all(text[step.start : step.end].strip() for step in found)


def test_one_value_from_several_steps():
    steps = [0.5, 0.25, 0.8]
    found = {how: step_value(steps, how) for how in ("min", "product", "last", "mean")}
    assert found == {"min": 0.25, "product": 0.1, "last": 0.8, "mean": pytest.approx(1.55 / 3)}
    for bad in ([], [1.5], [float("nan")], [None]):
        with pytest.raises(ArgumentError, match=r"probabilities"):
            step_value(bad)
    with pytest.raises(ArgumentError, match=r"aggregate: got 'sum'"):
        step_value(steps, "sum")
