"""OpenRS scores by hand, and the properties that its aggregation promises."""

import math

import pytest
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.rewards.judges.openrs import (
    aggregate_criteria,
    explain_criteria,
    extract_json,
    one_vs_n,
    two_order_strict,
    two_order_verdict,
    two_order_votes,
    verifiable_verdict,
)

PLAIN = ("core", "important", "highlight")


def c(type, winner, score):
    return {"type": type, "winner": winner, "score": score}


def swapped(criteria):
    other = {"A": "B", "B": "A", "S": "S"}
    return [c(x["type"], other[x["winner"]], -x["score"]) for x in criteria]


def consistent(types):
    """A criterion whose letter and score agree."""
    score = st.integers(-2, 2)
    letter = {1: "A", 0: "S", -1: "B"}
    return st.builds(lambda t, s: c(t, letter[(s > 0) - (s < 0)], s), st.sampled_from(types), score)


ANY = st.lists(
    st.builds(c, st.sampled_from(["critical", *PLAIN]), st.sampled_from("ABS"), st.integers(-2, 2)),
    max_size=15,
)


def test_worked_numbers():
    mixed = [c("core", "A", 2), c("important", "B", -1), c("highlight", "S", 0)]
    assert aggregate_criteria(mixed) == pytest.approx((10 - 2) / (7 + 1e-6))
    assert aggregate_criteria([*mixed, c("critical", "B", -2)]) == -2
    assert aggregate_criteria([c("critical", "A", 2), c("critical", "A", 1)]) == 3
    assert aggregate_criteria([]) == 0
    assert aggregate_criteria([c("core", "S", 0)]) == 0
    assert aggregate_criteria([mixed, []]) == [aggregate_criteria(mixed), 0]
    assert aggregate_criteria(mixed, min_score=1.2) == 0
    assert aggregate_criteria({"rubric_compares": mixed}) == aggregate_criteria(mixed)


def test_chinese_names_missing_and_unknown_types(caplog):
    chinese = [c("核心", "A", 1), c("重要", "B", -2), c("亮点", "A", 1)]
    assert aggregate_criteria(chinese) == pytest.approx((5 - 4 + 1) / 8, abs=1e-6)
    assert aggregate_criteria([*chinese, c("硬伤", "B", -1)]) == -1
    assert aggregate_criteria([{"winner": "A", "score": 1}]) == aggregate_criteria(
        [c("important", "A", 1)]
    )
    found = explain_criteria([c("core", "A", 1), c("fancy", "B", -2)])
    assert found.value == pytest.approx(1, abs=1e-6)
    assert found.unknown_types == ("fancy",)
    assert "fancy" in caplog.text


def test_the_letter_beats_the_sign_and_is_counted():
    found = explain_criteria([c("core", "A", -2), c("core", "B", -1)])
    assert found.value == pytest.approx(0.5, abs=1e-6)
    assert found.inconsistent == 1


def test_edge_cases_of_the_veto():
    odd = [c("critical", "S", 1), c("core", "A", 2)]
    assert aggregate_criteria(odd) == 0
    assert aggregate_criteria(odd, strict=True) == pytest.approx(2, abs=1e-5)
    opposed = [c("critical", "A", 1), c("critical", "B", -1), c("core", "B", -2)]
    assert aggregate_criteria(opposed) == 0
    assert aggregate_criteria(opposed, fallthrough=True) == pytest.approx(-2, abs=1e-5)


@pytest.mark.parametrize(
    "broken",
    [
        None, "prose", {"other": []}, [{"type": "core", "score": 1}],
        [{"type": "core", "winner": "A"}], [c("core", "C", 1)], [c("core", "A", "many")],
        [c("core", "A", math.nan)], [c("core", "A", True)], ["A"],
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_no_number(broken):
    assert aggregate_criteria(broken) is None
    assert aggregate_criteria(broken, parity=True) == 0
    assert explain_criteria(broken).reason


def test_parity_dilutes_as_the_reference_does():
    tied = [c("core", "A", 2), c("core", "S", 1)]
    assert aggregate_criteria(tied) == pytest.approx(2, abs=1e-5)
    assert aggregate_criteria(tied, parity=True) == pytest.approx(1, abs=1e-5)
    assert aggregate_criteria([c("core", "A", 1.9)], parity=True) == pytest.approx(1, abs=1e-5)


def test_other_weights_and_wrong_ones():
    pair = [c("core", "A", 1), c("highlight", "B", -1)]
    assert aggregate_criteria(pair, weights={"core": 1}) == 0
    assert aggregate_criteria(pair, weights={"核心": 0}) == pytest.approx(-1, abs=1e-5)


@given(ANY, st.booleans(), st.booleans(), st.booleans(), st.floats(0, 2))
def test_exchanging_the_responses_negates(criteria, strict, fallthrough, parity, least):
    rules = {"strict": strict, "fallthrough": fallthrough, "parity": parity}
    one = aggregate_criteria(criteria, least, **rules)
    other = aggregate_criteria(swapped(criteria), least, **rules)
    assert one == pytest.approx(-other, abs=1e-12)


@given(ANY, st.sampled_from(PLAIN))
def test_a_tied_criterion_changes_nothing(criteria, type):
    more = [*criteria, c(type, "S", 0)]
    assert aggregate_criteria(more) == aggregate_criteria(criteria)


@given(st.lists(consistent(PLAIN)), st.sampled_from([("A", 1), ("A", 2), ("B", -1), ("B", -2)]))
def test_a_decided_critical_one_silences_the_rest(criteria, flaw):
    assert aggregate_criteria([*criteria, c("critical", *flaw)]) == flaw[1]


@given(st.sampled_from(PLAIN), st.lists(st.sampled_from([-2, -1, 1, 2]), min_size=1, max_size=15))
def test_one_type_alone_is_the_plain_mean(type, scores):
    criteria = [c(type, "A" if s > 0 else "B", s) for s in scores]
    assert aggregate_criteria(criteria) == pytest.approx(sum(scores) / len(scores), abs=3e-6)


@given(st.lists(consistent(PLAIN), min_size=1), st.data())
def test_a_better_score_never_lowers_the_total(criteria, data):
    place = data.draw(st.integers(0, len(criteria) - 1))
    score = criteria[place]["score"]
    # From or to a tie the number of decided criteria changes, so only the sign is promised there.
    raised = data.draw(st.integers(score, 2))
    better = list(criteria)
    better[place] = c(
        criteria[place]["type"], {1: "A", 0: "S", -1: "B"}[(raised > 0) - (raised < 0)], raised
    )
    before, after = aggregate_criteria(criteria), aggregate_criteria(better)
    if score * raised > 0 or raised == score or score < 0 < raised:
        assert after >= before - 1e-12


@given(st.lists(consistent(PLAIN), max_size=15))
def test_without_a_critical_one_it_stays_below_two(criteria):
    assert abs(aggregate_criteria(criteria)) < 2


def test_the_published_two_order_rule_is_asymmetric_and_ours_is_not():
    pairs = [(1, 0), (0, -1), (0, 0.5), (-1, 0), (1, -1), (-1, 1), (1, 1), (None, 1)]
    assert two_order_verdict(pairs) == [
        "good", "same", "bad", "same", "good", "bad", "same", "error",
    ]  # fmt: skip
    assert two_order_votes(pairs) == [
        "good", "good", "bad", "bad", "good", "bad", "same", "error",
    ]  # fmt: skip
    assert two_order_verdict((0.3, -2), min_score=0.5) == "same"
    assert two_order_votes((0.3, -2), min_score=0.5) == "good"
    assert two_order_verdict((0, -1), 0, "votes") == "good"


SCORES = st.one_of(st.none(), st.integers(-4, 4), st.floats(-4, 4))


@given(SCORES, SCORES, st.floats(0, 1))
def test_votes_exchange_good_and_bad(forward, backward, least):
    # Exchanging the responses exchanges the two orders.
    other = {"good": "bad", "bad": "good", "same": "same", "error": "error"}
    one = two_order_votes((forward, backward), least)
    assert two_order_votes((backward, forward), least) == other[one]


def test_strict_one_vs_n_and_the_verifiable_stage():
    winners = [("A", "B"), ("B", "A"), ("A", "A"), ("Tie", "B"), (None, "A")]
    assert two_order_strict(winners) == ["win", "lose", "tie", "tie", "error"]
    assert two_order_strict(("A", "B")) == "win"
    assert one_vs_n([[1, 1, 1], [1, 0, 1], [1, -1, 1], [0, 0]]) == ["Win", "Tie", "Loss", "Tie"]
    assert one_vs_n([1, 1]) == "Win"
    failed = [[1, None], [None], [0, float("nan")], [-1, None]]
    assert one_vs_n(failed) == ["error", "error", "error", "Loss"]
    assert verifiable_verdict([(1, 0), (-1, 1), (0, 0), (None, 1)]) == [
        "chosen_better", "rejected_better", "equal", "error",
    ]  # fmt: skip
    assert verifiable_verdict((1, -1)) == "chosen_better"
    with pytest.raises(UserError, match="two values"):
        verifiable_verdict((1, 0, 1))


def test_which_block_is_json():
    fenced = 'So:\n```json\n{"a": 1}\n```\nor rather\n```json\n{"a": 2}\n```\n```\nnoise\n```'
    assert extract_json(fenced) == {"a": 2}
    assert extract_json('```\n{"a": 3}\n```') == {"a": 3}
    assert extract_json('```python\n{"a": 4}\n```') == {"a": 4}
    assert extract_json(' {"a": 5} ') == {"a": 5}
    assert extract_json(["[1]", "prose", '{"a": NaN}', '{"a": 1}']) == [None, None, None, {"a": 1}]
    assert extract_json('```json\n{"a": 1}\n```\n```json\nbroken\n```') is None
    assert extract_json("[" * 100_000) is None


@given(st.text())
def test_extraction_never_raises(text):
    assert extract_json(text) is None or isinstance(extract_json(text), dict)
