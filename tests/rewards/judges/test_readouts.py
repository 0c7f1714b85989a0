"""Read-outs of judges' words and the scores made of them, by worked values."""

import math
import random

import numpy
import pytest
import torch
from hypothesis import given, strategies as st

from burnish.rewards.judges import (
    candidate_order,
    clamp,
    order_swap_aggregate,
    parse_pairwise_verdict,
    parse_pairwise_verdict_truncated,
    parse_rating,
    ranking_score,
    reference_match,
    rmbench_counts,
    sanitize_metadata,
    score_from_counts,
    stable_int,
    ties_score,
)
from burnish.rewards.judges.prompting import is_blocked
from burnish.rewards.select import sequential_knockout


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("I say A>>B", "A"), ("first A>B, on reflection B >> A", "B"), ("A = B", "Tie"),
        ("a = b", "error"), ("We have a = b here.\nFinal: A", "A"), ("if a > b: pass\n[[B]]", "B"),
        ("Output (a) then Output (b)", "B"), ("Final: tie.", "Tie"), ("Final: A\nFinal: B\n", "B"),
        ("Final: A is not a line of its own", "error"), ("Final: Abstain", "Abstain"),
        ("[[A]] and [[Tie]]", "Tie"), ('{"winner": "Response B"} {"winner": "A"}', "B"),
        ('so: {"verdict": "no preference"}', "Tie"), ('{"choice": "assistant a"}', "A"),
        ('{"winner": 1, "answer": "b"}', "B"), ('{"winner": "the first"}', "error"),
        ("[[A]] but A=B", "Tie"), ("Both are good.", "error"), ("", "error"),
    ],
)  # fmt: skip
def test_verdicts_in_the_order_of_the_forms(text, letter):
    assert parse_pairwise_verdict(text) == letter
    assert parse_pairwise_verdict([text, text]) == [letter, letter]


def test_a_cut_reply_counts_only_at_its_end_and_never_as_json():
    early = "[[A]]" + "." * 600
    assert parse_pairwise_verdict(early) == "A"
    assert parse_pairwise_verdict_truncated(early, "length") == "error"
    assert parse_pairwise_verdict_truncated(early, "stop") == "A"
    assert parse_pairwise_verdict_truncated("." * 600 + "[[B]]", finish_reason="length") == "B"
    assert parse_pairwise_verdict_truncated('{"winner": "A"}', "length") == "error"


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        ("8", 8), ("Rating: 8.", 8), ("8/10", 8), ("I give it 8/10.", 8), ("7 out of 10", 7),
        ("**9**", 9), ("[[4]]", 4), ("10", 10), ("0", None), ("11", None), ("-3", None),
        ("7.5", None), ("8/100", None), ("between 4-5", None), ("9 stars", None), ("", None),
    ],
)  # fmt: skip
def test_ratings(text, rating):
    assert parse_rating(text, lo=1, hi=10) == rating
    assert parse_rating([text], 1, 10) == [rating]


def test_ranking_scores_of_best_of_four():
    assert ranking_score(("A", "A")) == 1.0
    assert ranking_score([("A", "A"), ("B", "A"), ("error", "A"), (None, "C")]) == [
        1, 0, 0.25, 0.25,
    ]  # fmt: skip
    assert ranking_score("D", "D") == 1.0


def test_shares_of_counts():
    assert score_from_counts((3, 4)) == 0.75
    assert score_from_counts([(0, 0), (5, 4), (None, 3), (-1, 2), (2, -1), (1, None)]) == [
        1.0, 1.0, None, None, None, None,
    ]  # fmt: skip


def test_clamp():
    values = [0.5, -1, 2, math.nan, "x", None, math.inf, "0.25"]
    assert clamp(values, default=0.3) == [0.5, 0.0, 1.0, 0.3, 0.3, 0.3, 1.0, 0.25]
    assert clamp(7) == 1.0


@pytest.mark.parametrize(
    ("reference", "responses", "label"),
    [
        ("4", ["It is 14.", "It is 4."], "B"), ("4", ["4", "also 4"], "inconclusive"),
        ("4", ["5", "6"], "inconclusive"), ("4", ["-4", "the answer: 4"], "B"),
        ("4", ["4.5", "3,4", "(4)"], "C"), ("-4", ["4", "x = -4"], "B"),
        ("4", [r"\boxed{4}", "44"], "A"), ("New York.", ["in NEW  YORK, they say", "York"], "A"),
        ("cat", ["concatenate", "a cat"], "B"), ("", ["a", "b"], "inconclusive"),
        ("50%", ["50% of them", "50 of them"], "A"), ("straße", ["STRASSE 5", "x"], "A"),
    ],
)  # fmt: skip
def test_references_are_matched_as_whole_tokens(reference, responses, label):
    assert reference_match((reference, responses)) == label
    assert reference_match({"reference": reference, "responses": responses}) == label


def test_references_take_labelled_responses_and_lists_of_cases():
    assert reference_match({"reference": "4", "responses": {"x": "4", "y": "5"}}) == "x"
    assert reference_match([("4", ["4", "5"]), ("5", ["4", "5"])]) == ["A", "B"]


def test_stable_integers_and_orders():
    # SHA-256 of the parts with U+001F between them, the first 16 digits.
    assert stable_int("a", 1) == stable_int(["a", 1]) == 9484037261928657086
    assert stable_int("ab") != stable_int("a", "b")
    order = list(range(5))
    random.Random(stable_int(0, "d", "x", "candidate_order")).shuffle(order)
    assert candidate_order(0, "d", "x", 5) == order == [4, 0, 2, 1, 3]


def test_two_orders_over_all_samples():
    found = order_swap_aggregate(
        gold=["A", "A", "B", "A", "A", "B"],
        predictions=[
            ("A", "B"),  # right in both letters shown
            ("A", "A"),  # always the first: one right, one wrong
            ("A", "Tie"), ("error", None), ("error", "B"), ("Tie", "Tie"),
        ],
    )  # fmt: skip
    assert found.results == ["correct", "same", "wrong", "invalid", "correct", "same"]
    assert (found.correct, found.wrong, found.same, found.invalid) == (2, 1, 2, 1)
    assert found.accuracy == pytest.approx(2 / 6)


def test_two_orders_with_a_label_for_each_order():
    assert order_swap_aggregate(["A", "B"], ["A", "B"]).results == ["correct"]
    assert order_swap_aggregate([("A", "B")], [("B", "A")]).results == ["wrong"]
    assert order_swap_aggregate([], []).accuracy is None


def test_rm_bench_counts_by_style():
    found = rmbench_counts(
        pairs=["ab", "ac", "aa", "ca", "ba"],
        winner_is_chosen_when="A",
        predictions=["A", "Tie", "A", "B", "A"],
    )
    assert found.by_pair["ab"] == (1, 1)
    assert found.by_mode == {"easy": (1, 2), "normal": (1, 1), "hard": (1, 2)}
    assert found.overall == (3, 5)
    swapped = rmbench_counts(["ab", "ab"], ["A", "B"], ["A", "A"])
    assert swapped.overall == (1, 2)


def test_ties_by_hand():
    rows = [
        {"id": "ref:1", "num_correct": 1, "ratings": [9, 4]},  # gap 5
        {"id": "tied:1", "num_correct": 2, "ratings": [9, 8, 4]},  # gap 4, spread 1
        {"id": "ref:2", "num_correct": 1, "ratings": [5, 6]},  # gap -1
        {"id": "tied:2", "num_correct": 2, "ratings": [9, 5, 3]},  # gap 2, spread 4
    ]
    low = [math.tanh(4 / 1 - 1), math.tanh(-1 / 4 - 1)]
    expected = 0.3 * 1.0 + 0.3 * 0.5 + 0.2 * 0.5 + 0.2 * 0.5 + 0.01 * sum(low) / 2
    assert ties_score(rows) == pytest.approx(expected)
    assert ties_score(rows[:1]) == pytest.approx(0.3)
    assert ties_score([]) is None


def test_ties_without_spread_or_with_a_missing_rating():
    same = [
        {"id": "ref:1", "num_correct": 1, "ratings": [9, 4]},
        {"id": "tied:1", "num_correct": 2, "ratings": [8, 8, 4]},
    ]
    assert ties_score(same) == pytest.approx(0.3 + 0.3 + 0.2 + 0.2)
    missing = [same[0], {"id": "tied:1", "num_correct": 2, "ratings": [8, None, 4]}]
    assert ties_score(missing) == pytest.approx(0.3)


def test_labels_are_removed_at_any_depth_and_case():
    metadata = {
        "domain": "law", "Label": "A",
        "extra": {"WINNER": "A", "modelA": "x", "deep": [{"gold-label": 1}, {"page": 3}]},
        "human_label": "B", "only": {"score": 1}, "empty": [], "count": 0, "flag": False,
        "response_order": [1, 0], "source": "forum",
    }  # fmt: skip
    assert sanitize_metadata(metadata) == {
        "domain": "law", "extra": {"deep": [{"page": 3}]}, "count": 0, "flag": False,
        "source": "forum",
    }  # fmt: skip


TELLING = (
    "is_chosen human_rating gpt4_verdict answer_order isChosen gpt4Verdict ANSWER-ORDER score1 2label "
    "modelB modelname IsGTLabel response.model user/winner chosenness user_preferences ground_truth "
    "groundTruth humanscores orderid rEjected cHoSeN label_free_text best_response"
)
HARMLESS = (
    "prefix border original_prompt underscore topic source language operating generating disorder "
    "recorder frank rewarding difficulty constraint_count reference checklist turns stewardship"
)


@pytest.mark.parametrize("key", TELLING.split())
def test_a_telling_word_inside_a_longer_name_is_found(key):
    assert sanitize_metadata({key: "A", "topic": "law"}) == {"topic": "law"}
    assert sanitize_metadata({"rows": [{"more": ({key: 1},)}, {"n": 1}]}) == {"rows": [{"n": 1}]}


@pytest.mark.parametrize("key", HARMLESS.split())
def test_names_that_only_look_like_it_stay(key):
    assert sanitize_metadata({key: "A"}) == {key: "A"}


def test_what_is_nested_too_deep_is_dropped():
    deep = {"x": "kept"}
    for _ in range(10_000):
        deep = {"more": deep}
    assert sanitize_metadata({"page": 3, "deep": deep}) == {"page": 3}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["label", "Scores", "model", "topic", "n", "is_correct", "x_label"])
            | st.text(max_size=6),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def keys_in(value):
    if isinstance(value, dict):
        return [key for k, v in value.items() for key in [k, *keys_in(v)]]
    return [key for v in value for key in keys_in(v)] if isinstance(value, list) else []


@given(json_values)
def test_sanitising_is_idempotent_and_leaves_no_blocked_key(metadata):
    once = sanitize_metadata(metadata)
    assert sanitize_metadata(once) == once
    assert not [key for key in keys_in(once) if is_blocked(key)]


def test_tensors_and_arrays_are_as_good_as_lists():
    counts = [[3, 4], [5, 4]]
    for kind in (numpy.array, torch.tensor):
        assert clamp(values=kind([0.5, 2.0, -1.0])) == [0.5, 1.0, 0.0]
        assert clamp(values=kind(2.0)) == 1.0
        assert score_from_counts(pairs=kind(counts)) == [0.75, 1.0]
        assert score_from_counts(kind(3), kind(4)) == 0.75
        order, quality = kind([2, 0, 1]), kind([0.1, 0.9, 0.4])
        assert sequential_knockout(order=order, quality=quality) == (1, 2)
    assert score_from_counts(pairs=torch.tensor([3, 4])) == 0.75


def test_an_object_that_names_two_winners_is_no_verdict():
    assert parse_pairwise_verdict('{"winner": "A", "winner": "B"}') == "error"
