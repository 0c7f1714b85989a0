"""Public functions of EVPV: worked numbers, the checks of the method as properties, refusals."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.rewards.judges.evpv import (
    aggregate_steps,
    best_of_k,
    build_checklist,
    correctness_rate,
    corrupt_drop,
    corrupt_flip,
    first_error,
    gate,
    geometric_mean,
    macro_f1,
    parse_step_verdict,
    parse_step_verdict_strict,
    reliability_from_audit,
    response_reliability,
    streak,
    weighted_correctness,
)
from burnish.rewards.judges.evpv.metrics import flip_text

AGGREGATES = ("weighted", "rate", "streak", "geometric", "first_error")
SCORES = st.lists(st.floats(-1, 1), max_size=8)
SIGNS = st.lists(st.sampled_from([1, -1]), max_size=8)
RAW = st.lists(st.sampled_from([1.0, -1.0, 0.5, 0.0]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "lenient", "strict"),
    [
        ("1", 1, 1), ("-1", -1, -1), (" ```json\n-1\n``` ", -1, -1), ("[1]", 1, 1),
        ("[ -1 ]", -1, -1), ("", -1, None), (None, -1, None), ("Step 1 is incorrect", 1, None),
        ("10", 1, None), ("1.5", 1, None), ("-1.9", -1, None), ("0", -1, None), ("-0.5", -1, None),
        ("1 or -1", -1, None), ("+1", 1, None), ("7 of them", 1, None), ("-12 of them", -1, None),
        ("no idea", -1, None), ("NaN", -1, None), ("1e999", 1, None), ("9" * 6000, 1, None),
        ("[1, 1]", 1, None),
    ],
)  # fmt: skip
def test_a_verdict_is_read_leniently_for_parity_and_strictly_by_default(text, lenient, strict):
    assert parse_step_verdict(text) == lenient
    assert parse_step_verdict_strict(text) == strict
    assert parse_step_verdict([text, text]) == [lenient] * 2


def test_a_checklist_keeps_each_claim_once_and_every_step():
    steps = [
        {"text": "a", "premise": "AB = 10"}, {"text": "b", "premise": None},
        {"text": "c", "premise": " null "}, {"text": "d", "premise": "  "},
        {"steptext": "e", "visualdependency": "CD = 5"}, ("f", " AB = 10 "),
        {"text": "g", "premise": ["EF = 1", None, "AB = 10"]},
    ]  # fmt: skip
    assert build_checklist(steps) == (["AB = 10", "CD = 5", "EF = 1"], [0, 4, 5, 6])
    assert build_checklist([]) == ([], [])


def test_reliability_of_an_audit():
    cases = [["high"], ["High", "low"], ["low"] * 3, ["high"] * 3, []]
    assert reliability_from_audit(cases) == pytest.approx([0.5, 0.3, 0.4, 0.0, 1.0])
    assert reliability_from_audit([{"severity": "low", "why": "x"}]) == pytest.approx(0.8)
    assert reliability_from_audit(None) is None


def test_the_gate_by_hand():
    assert gate([1, 1, -1, 1], [0, 2, 3], 0.5) == [0.5, 1, -1, 0.5]
    assert gate([1, 1, -1, 1], [0, 2, 3], [0.2, 0.0, 1.0]) == [0.2, 1, -1, 1]
    assert gate([1, 1], [0, 5, -1], 0.0) == [0, 1]
    assert gate([1, None], [0, 1], None) == [1, None]
    assert gate(np.array([1.0, 1.0]), torch.tensor([0]), torch.tensor(0.5)) == [0.5, 1]
    with pytest.raises(UserError, match="reliability"):
        gate([1, 1], [0], [0.5, 0.5])


@given(RAW, st.lists(st.integers(-2, 9), unique=True), st.floats(0, 1), st.floats(0, 1))
def test_the_gate_is_monotone_and_never_raises_an_error(raw, visual, low, high):
    low, high = sorted((low, high))
    assert gate(raw, visual, 1.0) == gate(raw, [], low) == gate(raw, visual, None) == raw
    below, above = gate(raw, visual, low), gate(raw, visual, high)
    for was, one, two in zip(raw, below, above, strict=True):
        assert one <= two <= was if was > 0 else one == two == was
    nothing = gate(raw, visual, 0.0)
    assert all(nothing[n] <= 0 for n in visual if 0 <= n < len(raw))
    for name, soft in itertools.product(AGGREGATES, (True, False)):
        scores = [aggregate_steps(one, name, soft=soft) for one in (below, above)]
        assert scores[0] <= scores[1] + 1e-12


def test_aggregators_by_hand():
    scores = [1, 1, -1, 1]
    assert correctness_rate(scores) == 0.75
    assert weighted_correctness(scores) == pytest.approx((4 / 10 + 1) / 2)
    assert streak(scores) == pytest.approx((1 + 2 - 1 + 1 + 4) / (10 + 4))
    assert geometric_mean(scores) == pytest.approx(0.1**0.25)
    assert first_error(scores) == 0.5
    assert [aggregate_steps([], name) for name in AGGREGATES] == [0.0] * 5
    half = [1, 0.5]
    assert (correctness_rate(half), first_error(half)) == (0.5, 1.0)
    assert correctness_rate(half, soft=True) == 0.875
    assert first_error(half, soft=True) == 0.875
    assert geometric_mean([1, -1], soft=True) == pytest.approx(math.sqrt(0.1))


@given(SCORES)
def test_aggregators_stay_in_their_range(scores):
    for name, soft in itertools.product(AGGREGATES, (True, False)):
        assert -1e-12 <= aggregate_steps(scores, name, soft=soft) <= 1 + 1e-12


@given(SIGNS)
def test_soft_aggregators_equal_the_table_on_plain_verdicts(scores):
    for name in AGGREGATES:
        hard, soft = (aggregate_steps(scores, name, soft=one) for one in (False, True))
        assert hard == pytest.approx(soft)


def test_best_of_k_by_hand():
    assert best_of_k([0.2, 0.9, 0.9, 0.1], [True, False, True, None]) == (
        [1, 1, 1, 1],
        [1, 0, 0.5, 0.5],
    )
    assert best_of_k([0.9, 0.9], [False, True], tie_rule="optimistic").bon_at_k == [0, 1]
    both = best_of_k([[0.1, 0.2], [0.3, 0.2]], [[True, False], [False, True]])
    assert both == ([0.5, 1.0], [0.5, 0.0])
    assert best_of_k([[1, 1], [1, -1]], [False, True]).bon_at_k == [0, 0]  # step scores
    assert best_of_k([{"score": 0.1}, {"score": None}], [True, False]).bon_at_k == [1, 1]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=8))
def test_expected_ties_are_below_optimistic_ones_below_any_right(rows):
    scores, right = (list(one) for one in zip(*rows, strict=True))
    expected, optimistic = (best_of_k(scores, right, one) for one in ("expected", "optimistic"))
    for mine, theirs, whole in zip(
        expected.bon_at_k, optimistic.bon_at_k, expected.pass_at_k, strict=True
    ):
        assert mine <= theirs <= whole
    equal = best_of_k([0.3] * len(right), right).bon_at_k
    assert equal == pytest.approx([sum(right[: k + 1]) / (k + 1) for k in range(len(right))])


def test_candidates_without_a_score_are_never_the_best():
    assert best_of_k([None, None], [True, False]) == ([1, 1], [None, None])
    assert best_of_k([None, 0.1], [True, False], "optimistic").bon_at_k == [None, 0]
    two = best_of_k([[None, 0.2], [0.3, 0.1]], [[True, False], [True, True]])
    assert two == ([1, 1], [1, 0.5])
    assert two.unscored_at_k == [1, 0]


def test_a_step_that_is_listed_twice_is_gated_once():
    assert gate([1, 1], [0, 0], 0.5) == [0.5, 1]
    assert gate([1, 1], [0, 0, 1], [0.5, 0.25, None]) == [0.25, 1]


def test_a_flip_reads_grouped_numbers_and_double_signs():
    rngs = [random.Random(seed) for seed in range(60)]
    numbers = {flip_text("Revenue = 1,200", rng).removeprefix("Revenue = ") for rng in rngs}
    factors, shifts = (0.5, 0.8, 1.2, 1.5, 2), (-2, -1, 1, 2)
    assert numbers <= {f"{1200 * by + plus:,.0f}" for by in factors for plus in shifts}
    for text, same in (("x == y", "="), ("x => y", ">="), ("x <> y", "!="), ("x ≤ y", "<=")):
        signs = {flip_text(text, rng)[2:-2] for rng in rngs}
        assert signs == {"<", ">", "<=", ">=", "=", "!="} - {same}


def test_macro_f1_by_hand():
    assert macro_f1([1, 1, -1, 0], [1, -1, -1, 1]) == pytest.approx(2 / 3)
    assert macro_f1([1] * 9 + [-1], [1] * 10) == pytest.approx((18 / 19) / 2)  # a constant verifier
    assert macro_f1([1, -1], [None, 0]) == 0.0
    assert macro_f1([], []) == 0.0


@given(st.lists(st.tuples(st.sampled_from([1, -1, 0]), st.sampled_from([1, -1])), min_size=1))
def test_predictions_on_neutral_steps_do_not_count(rows):
    gold, pred = (list(one) for one in zip(*rows, strict=True))
    turned = [-p if g == 0 else p for g, p in rows]
    assert macro_f1(gold, pred) == macro_f1(gold, turned)


FACTS = {
    "caption": "AB is 10 long.",
    "key_facts": ["AB = 10", "x < y", "AB is parallel to CD", "angle is 2.50", "none: 0"],
    "uncertain": ["EF = 3"],
}


def test_dropping_nothing_is_the_identity_and_everything_empties():
    assert corrupt_drop(FACTS, 0.0) == FACTS
    assert corrupt_drop(FACTS, 1.0) == {"caption": "", "key_facts": [], "uncertain": ["EF = 3"]}
    assert corrupt_drop(FACTS["key_facts"], 1.0) == []
    some = [corrupt_drop(["a"] * 1000, 0.3, seed=s) for s in (1, 2)]
    assert all(650 < len(one) < 750 for one in some)


@given(st.integers(0, 10_000))
def test_a_flip_changes_only_numbers_and_relations_and_always_changes_them(seed):
    assert corrupt_flip(FACTS, 0.0, seed=seed) == FACTS
    found = corrupt_flip(FACTS, 1.0, seed=seed)
    assert found == corrupt_flip(FACTS, 1.0, seed=seed)
    assert found["uncertain"] == FACTS["uncertain"]
    length, relation, word, angle, zero = found["key_facts"]
    assert length.startswith("AB = ")
    assert int(length[5:]) != 10
    assert relation in {f"x {sign} y" for sign in (">", "<=", ">=", "=", "!=")}
    assert word == "AB is parallel to CD"
    assert float(angle.removeprefix("angle is ")) != 2.5
    assert zero in {f"none: {n}" for n in (1, 2, 3, 5, 10)}
    assert found["caption"].startswith("AB is ")
    assert found["caption"] != FACTS["caption"]


def test_draws_follow_the_sample():
    many = ["AB = 10"] * 50
    one, other = (corrupt_flip(many, 0.5, sample_id=name) for name in ("a", "b"))
    assert one != other
    assert one == corrupt_flip(many, 0.5, sample_id="a")


def test_one_reliability_for_a_response():
    assert response_reliability([1, 0.5, 0]) == 0.5
    assert response_reliability([1, 0.5, 0], "min") == 0
    assert response_reliability([1, None]) is None
    assert response_reliability([0, 1, None], "min") == 0  # no more than the least that is known
    assert response_reliability([None], "min") is None
    assert response_reliability([]) == 1.0


@given(RAW, st.floats(0, 1))
def test_a_gate_by_claim_with_one_claim_is_that_of_the_response(raw, support):
    visual = list(range(len(raw)))
    by_claim = gate(raw, visual, [support] * len(raw))
    assert by_claim == gate(raw, visual, response_reliability([support]))
