"""Accuracy over all, decided and valid; kappas against worked tables."""

import pytest
from bench_cases import data, said
from hypothesis import given, strategies as st

from burnish.bench.items import Judged, choice_of
from burnish.bench.judge_accuracy import (
    accuracy,
    agreement,
    by_style,
    by_subset,
    cohen_kappa,
    confusion,
    disagreements,
    fleiss_kappa,
    flips,
)
from burnish.bench.judge_results import merge_orders, read_recorded
from burnish.bench.loaders import load

CHOICES = st.sampled_from([(0,), (1,), (0, 1), None])


def test_three_denominators_by_hand():
    judged = [said("1", (0,)), said("2", (0,)), said("3", (1,)), said("4", (0, 1)), said("5", None)]
    found = accuracy(judged)
    assert (found.items, found.ties, found.failed) == (5, 1, 1)
    assert found.all is not None
    assert found.valid is not None
    assert found.decided is not None
    assert found.all.value == pytest.approx(2 / 5)
    assert found.valid.value == pytest.approx(2 / 4)
    assert found.decided.value == pytest.approx(2 / 3)
    # Wilson, 2 of 5: (0.4 + 0.38415 -+ 0.39210) / 1.76829, by hand
    assert found.all.low == pytest.approx(0.1176, abs=1e-4)
    assert found.all.high == pytest.approx(0.7693, abs=1e-4)


def test_a_tie_is_right_where_people_find_them_equal():
    judged = [said("1", (0, 1), best=(0, 1)), said("2", (0,), best=(0, 1))]
    found = accuracy(judged)
    assert found.all is not None
    assert found.all.value == 0.5
    assert found.decided is not None
    assert found.decided.value == 0


def test_of_several_responses_a_shared_top_earns_its_share():
    four = Judged("1", "j", values=(1.0, 1.0, 0.0, 0.0), choice=(0, 1), best=(1,))
    assert four.credit == 0.5
    assert Judged("1", "j", values=(1.0, 1.0), choice=(0, 1), best=(1,)).credit == 0
    assert choice_of([1.0, None]) is None
    assert choice_of([2.0, 2.0, 1.0]) == (0, 1)


def test_items_without_a_label_are_in_no_denominator():
    found = accuracy([said("1", (0,), best=None)])
    assert found == (None, None, None, 0, 0, 0)


@given(st.lists(st.tuples(CHOICES, st.sampled_from([(0,), (1,)])), min_size=1, max_size=30))
def test_exchanging_all_responses_changes_no_accuracy(rows):
    swap = {(0,): (1,), (1,): (0,), (0, 1): (0, 1), None: None}
    here = accuracy([said(str(k), c, best=b) for k, (c, b) in enumerate(rows)])
    there = accuracy([said(str(k), swap[c], best=swap[b]) for k, (c, b) in enumerate(rows)])
    assert here == there
    if here.all and here.valid:
        assert here.all.value <= here.valid.value + 1e-12


def test_subsets_count_alike_in_the_macro_mean():
    judged = [said("1", (0,), subset="a"), said("2", (0,), subset="b"), said("3", (1,), subset="b")]
    found = by_subset(judged)
    assert list(found.each) == ["a", "b"]
    assert found.macro == pytest.approx(0.75)


def test_rmbench_difficulties_by_hand():
    """A judge for whom the more elaborate style wins: all easy pairs, no hard one."""
    judged = []
    for i in range(3):
        for j in range(3):
            choice = (0,) if i > j else (1,) if i < j else (0, 1)
            info = {"right_style": str(i), "wrong_style": str(j)}
            judged.append(said(f"{i}{j}", choice, subset="chat", info=info))
    found = by_style(judged)
    assert (found.easy, found.normal, found.hard) == (1, 0, 0)
    assert found.mean == pytest.approx(1 / 3)


def test_longer_wins_on_rmbench_chat_has_the_known_profile():
    """The published files' own diagnosis: about .03 / .24 / .81 for hard, normal and easy."""
    judged = []
    for item in load("rmbench", data("rmbench", "chat.parquet")):
        values = tuple(float(len(r.text)) for r in item.responses)
        judged.append(
            Judged(
                item.id, "longer", values=values, choice=choice_of(values), best=item.best,
                subset=item.subset, info=item.info,
            )
        )  # fmt: skip
    found = by_style(judged)
    assert found.hard == pytest.approx(0.028, abs=0.03)
    assert found.normal == pytest.approx(0.243, abs=0.08)
    assert found.easy == pytest.approx(0.811, abs=0.08)


def test_cohen_kappa_worked():
    # 20 both yes, 15 both no, 5 and 10 apart: observed .7, expected .5, kappa .4
    first = ["y"] * 25 + ["n"] * 25
    second = ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa(["y", "n"], ["y", "n"]) == 1
    assert cohen_kappa(["y", "y"], ["y", "y"]) is None
    assert cohen_kappa([], []) is None


def test_fleiss_kappa_worked():
    """Fleiss' table of 10 items, 14 raters and 5 categories: kappa 0.210."""
    counts = [
        (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
        (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
    ]  # fmt: skip
    rows = [[str(k) for k, n in enumerate(row) for _ in range(n)] for row in counts]
    assert fleiss_kappa(rows) == pytest.approx(0.210, abs=5e-4)
    with pytest.raises(ValueError, match="the same number of marks"):
        fleiss_kappa([["a", "b"], ["a"]])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=40))
def test_kappa_is_symmetric_and_at_most_one(rows):
    first, second = [a for a, _ in rows], [b for _, b in rows]
    kappa = cohen_kappa(first, second)
    assert kappa == cohen_kappa(second, first)
    assert kappa is None or kappa <= 1 + 1e-12


def test_flips_and_the_first_place():
    forward = [said("1", (0,)), said("2", (0,)), said("3", (1,)), said("4", None)]
    backward = [said("1", (0,)), said("2", (1,)), said("3", (0, 1)), said("4", (0,))]
    found = flips(forward, backward)
    assert found.flipped is not None
    assert (found.flipped.value, found.flipped.size) == (0.5, 2)
    # first place: 1 and 2 forward, 2 backward; not 3 forward, nor 1 and 4 backward
    assert found.first_place is not None
    assert (found.first_place.value, found.first_place.size) == (0.5, 6)


@given(CHOICES, CHOICES)
def test_merging_orders_is_symmetric_and_antisymmetric(first, second):
    swap = {(0,): (1,), (1,): (0,), (0, 1): (0, 1), None: None}
    merged = merge_orders(said("x", first), said("x", second)).choice
    assert merged == merge_orders(said("x", second), said("x", first)).choice
    other = merge_orders(said("x", swap[first]), said("x", swap[second])).choice
    assert other == swap[merged]
    assert (merged is None) == (first is None or second is None)


def test_disagreements_and_confusion():
    judged = [said("1", (0,)), said("2", (1,)), said("3", None)]
    assert [one.id for one in disagreements(judged)] == ["2", "3"]
    assert confusion(judged) == {("1", "1"): 1, ("1", "2"): 1, ("1", "none"): 1}


def test_recorded_judges_of_llmbar():
    items = load("llmbar", data("llmbar", "test.parquet"))
    judges = read_recorded("llmbar", data("recorded_judges", "llmbar.parquet"), items)
    assert len(judges) == 12
    gpt4 = judges["GPT-4/Metrics_Reference"]
    one, both = accuracy(gpt4.forward), accuracy(gpt4.judged)
    assert one.all is not None
    assert one.all.value == pytest.approx(0.879, abs=0.001)
    assert both.decided is not None
    assert both.decided.value == pytest.approx(0.924, abs=0.001)
    # Two orders decide fewer pairs and are right more often where they decide.
    for judge in judges.values():
        single, double = accuracy(judge.forward), accuracy(judge.judged)
        assert double.ties > single.ties
    assert sum(j.forward[0].is_valid is False for j in judges.values()) <= 12


def test_recorded_judges_of_pandalm_agree_with_people_less_than_people_do():
    items = load("pandalm", data("pandalm", "test.parquet"))
    people = {item.id: item.people for item in items}
    judges = read_recorded("pandalm", data("recorded_judges", "pandalm.parquet"), items)
    assert set(judges) == {"gpt-3.5-turbo", "pandalm-7b"}
    for judge in judges.values():
        found = agreement(judge.forward, people)
        assert found.kappa is not None
        assert found.people is not None
        assert 0.4 < found.kappa < found.people
        assert all(value is not None and value < found.people for value in found.with_each)
    garbage = [one for one in judges["gpt-3.5-turbo"].forward if not one.is_valid]
    assert len(garbage) == 12
    assert all(one.values == (None, None) for one in garbage)
    decided = by_subset(judges["gpt-3.5-turbo"].forward).each["one is better"]
    assert decided.all is not None
    assert decided.all.value == pytest.approx(0.791, abs=0.02)
