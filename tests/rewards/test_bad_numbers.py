"""NaN, None and wrong words at readers, votes and scores: never a number that nobody gave."""

import math

import pytest

from burnish.errors import UserError
from burnish.rewards import contained_match, exact_match, parse_pair_scores
from burnish.rewards.checks.relevance import leading_grade
from burnish.rewards.judges import (
    candidate_order,
    order_swap_aggregate,
    parse_pairwise_verdict,
    parse_rating,
    ranking_score,
    reference_match,
    sanitize_metadata,
    score_from_counts,
    ties_score,
)
from burnish.rewards.judges.openrs import (
    aggregate_criteria,
    explain_criteria,
    extract_json,
    one_vs_n,
    two_order_strict,
)
from burnish.rewards.judges.rubric import equal
from burnish.seeds import derive

NAN = math.nan


def ties(*ratings):
    return [
        {"id": "ref:1", "num_correct": 1, "ratings": [9, 3]},
        {"id": "tied:1", "num_correct": 2, "ratings": list(ratings)},
    ]


@pytest.mark.parametrize("place", range(3))
def test_a_rating_that_is_nan_is_missing(place):
    bad, none = [9.0, 8.0, 3.0], [9.0, 8.0, 3.0]
    bad[place], none[place] = NAN, None
    assert ties_score(ties(*bad)) == ties_score(ties(*none)) == pytest.approx(0.3)


def test_a_verdict_that_is_none_is_an_error_and_not_a_tie():
    said = parse_pairwise_verdict("I cannot decide")
    assert said == "error"
    assert two_order_strict((said, "B")) == "error"
    assert two_order_strict(("A", None)) == two_order_strict(("A", "")) == "error"
    assert two_order_strict([("A", "B"), ("B", "A"), ("A", "A")]) == ["win", "lose", "tie"]
    assert two_order_strict([("Tie", "B"), ("S", "same"), ("Abstain", "B")]) == ["tie"] * 3
    with pytest.raises(UserError, match="results: got"):
        one_vs_n([1, 2])


def test_every_response_has_a_label():
    responses = [f"it is {n}" for n in range(60)]
    assert reference_match(("25", responses)) == "Z"
    assert reference_match(("26", responses)) == "AA"
    assert reference_match(("53", responses)) == "BB"
    # The 27th makes it two, so nobody is named.
    assert reference_match(("yes", ["yes"] + ["no"] * 25 + ["yes"])) == "inconclusive"


def test_nothing_is_no_reference_and_no_response():
    assert reference_match(("none", [None, "some"])) == "inconclusive"
    assert reference_match((0, ["it is 0", "it is 1"])) == "A"
    assert exact_match(None, "None") == contained_match(NAN, ["nan"]) == 0.0
    with pytest.raises(UserError, match="chosen: got None"):
        ranking_score((None, None))


def test_a_half_counts_as_a_half():
    assert score_from_counts((2.5, 5)) == 0.5
    assert score_from_counts([(3, 4), ("3", 4), (None, 4), (NAN, 4), (-1, 4)]) == [
        0.75, 0.75, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("pair", [(0.55, 0.6), (0.6, 0.55), (0.95, 1.0), (0.3, 0.35), (0.1, 0.15)])
def test_a_difference_of_the_limit_is_not_below_it(pair):
    assert equal(pair, 0.05) is False
    assert equal(pair, 0.0500001) is True
    assert equal((0.5, 0.5), 0.0) is False


def test_a_reply_without_a_text_is_unreadable():
    assert parse_pairwise_verdict(None) == "error"
    assert parse_pairwise_verdict(["[[A]]", None]) == ["A", "error"]
    assert parse_rating(None) is parse_pair_scores(None) is extract_json(None) is None
    with pytest.raises(UserError, match="texts: got 5"):
        parse_rating(5)


def test_a_gold_label_is_one_of_the_letters():
    with pytest.raises(UserError, match="gold: got 'C'"):
        order_swap_aggregate(["C"], [("A", "B")])
    assert order_swap_aggregate(["A", "A"], [None, ("A", "B")]).results == ["invalid", "correct"]


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("2", 2), ("2.", 2), ("2. Because", 2), ("2, because", 2), ("2分", 2), ("2.5", None),
        ("2,5", None), ("2/3", None), ("2-1", None), ("2%", None), ("20", None),
    ],
)  # fmt: skip
def test_a_number_that_goes_on_is_no_grade(text, grade):
    assert leading_grade(text, ["0", "1", "2"]) == grade


@pytest.mark.parametrize(
    ("reference", "text", "stands"),
    [
        ("北京", "答案是北京。", True), ("4", "一共有4个。", True), ("4", "一共有14个。", False),
        ("4", "一共有4.5个。", False), ("四", "一共有十四个", False), ("四", "一共有四个", True),
        ("GDP", "中国GDP增长", True), ("ラン", "フランス", False), ("東京", "東京です", True),
        ("cat", "concatenate", False),
    ],
)  # fmt: skip
def test_whole_tokens_are_found_between_letters_without_blanks(reference, text, stands):
    assert reference_match((reference, [text, "别的"])) == ("A" if stands else "inconclusive")
    if "." not in text:  # the words of SQuAD have no punctuation
        assert contained_match(text, reference) == float(stands)


def test_a_score_beyond_two_keeps_to_another_scale():
    criteria = [{"type": "core", "winner": "A", "score": 2}, {"winner": "B", "score": -5}]
    found = explain_criteria(criteria)
    assert found.value is None
    assert found.decided_by == "invalid"
    assert found.reason == "criterion 2: expected a score from -2 to 2, got -5"
    # The reference code to the letter knows no bounds.
    assert aggregate_criteria(criteria, parity=True) == pytest.approx((5 * 2 - 2 * 5) / 7)


def test_half_a_character_in_a_name_still_gives_an_order():
    assert sorted(candidate_order(0, "d", "\ud800", 4)) == [0, 1, 2, 3]
    assert candidate_order(0, "d", "\ud800", 20) != candidate_order(0, "d", "\udfff", 20)
    assert derive("\ud800") != derive("\udfff")


@pytest.mark.parametrize(
    "key", ["human_pref", "is_swapped", "swap", "flipped", "truth", "oracle", "upvotes", "eloA"]
)
def test_other_words_for_a_label_or_an_order_do_not_reach_the_judge(key):
    kept = {"prefix": 1, "truthfulness_topic": 2, "velocity": 3, "elopement": 4}
    assert sanitize_metadata({key: 1, **kept}) == kept
