"""Graded answers: the label they begin with, and the sections behind it."""

import itertools
import time

import msgspec
import pytest
from hypothesis import given, strategies as st
from reward_cases import a_task, score, statuses, values

from burnish.records import Visibility
from burnish.rewards import RewardConfig, build_all
from burnish.rewards.checks.relevance import (
    Grade,
    GradeConfig,
    SectionCheck,
    SectionConfig,
    gold_grade,
    leading_grade,
    relevance_reward,
)
from burnish.rewards.checks.sections import find_sections

LABELS = ("0", "1", "2", "3")
GOOD = "2\nfacts: a red shoe\nrule: R4\nconclusion: 2"
HEADINGS = ("facts:", "rule:", "conclusion:")


def section(heading, **more):
    given = {"headings": HEADINGS, "labels": LABELS, **more}
    return SectionCheck(SectionConfig(heading=heading, **given))


@pytest.mark.parametrize(
    ("predicted", "kind", "value"),
    [
        (2, "exact", 1.0), (1, "exact", 0.0), (None, "exact", 0.0), (2, "ordinal", 1.0),
        (0, "ordinal", 1 - 2 / 3), (3, "ordinal", 1 - 1 / 3), (None, "ordinal", 0.0),
        (7, "ordinal", 0.0), (-1, "exact", 0.0),
    ],
)  # fmt: skip
def test_rewards_of_grades_by_hand(predicted, kind, value):
    found = relevance_reward(predicted=predicted, gold=2, num_grades=4, kind=kind)
    assert found == pytest.approx(value)


@given(st.integers(2, 9), st.data())
def test_the_ordinal_reward_is_symmetric_bounded_and_one_for_the_truth_alone(count, data):
    a, b = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    value = relevance_reward(a, b, count, "ordinal")
    assert 0.0 <= value <= 1.0
    assert value == relevance_reward(b, a, count, "ordinal")
    assert (value == 1.0) == (a == b)
    assert relevance_reward(a, b, count) == float(a == b)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2\nrule: x", 2), ("2", 2), ("2. Because", 2), ("23", None), ("2b", None), (" 2", None),
        ("\n2", None), ("The grade is 2", None), ("", None),
    ],
)  # fmt: skip
def test_an_answer_begins_with_its_label_or_has_none(text, found):
    assert leading_grade(text, LABELS) == found


def test_references_are_labels_or_positions():
    assert gold_grade("2", LABELS) == gold_grade(2, LABELS) == 2
    # A label's own text comes first: grades that count from 1 mean what they say.
    assert gold_grade(1, ("1", "2", "3")) == 0
    assert gold_grade(1, ("bad", "good")) == 1
    assert [gold_grade(v, ("bad", "good")) for v in (2, -1, None, True, 0.0, "Good")] == [None] * 6


def test_the_grade_check():
    scorer = Grade(GradeConfig(labels=LABELS, scale="ordinal"))
    assert scorer.needs == {"grade"}
    right, near, none = score(scorer, a_task(grade=2), GOOD, "3 rule", "I think 2")
    assert values([right, near, none]) == [1.0, pytest.approx(2 / 3), 0.0]
    assert right.evidence[0].visibility is Visibility.ORACLE
    assert "no label in 'I think 2'; reference '2'" in none.evidence[0].observation
    (lost,) = score(scorer, a_task(grade="E"), GOOD)
    assert (lost.value, lost.status) == (None, "abstain")
    assert "is 'E', which is none of the labels 0, 1, 2, 3" in lost.reason


def test_sections_that_stand_and_hold():
    assert values(score(section("facts:"), a_task(grade=2), GOOD)) == [1.0]
    assert values(score(section("rule:", pattern=r"R\d"), a_task(grade=2), GOOD)) == [1.0]
    conclusion = section("conclusion:", must_equal_grade=True)
    assert values(score(conclusion, a_task(grade=2), GOOD)) == [1.0]


@pytest.mark.parametrize(
    ("heading", "text", "saw"),
    [
        ("rule:", "2\nfacts: a", "no section 'rule:'"),
        ("rule:", "2 rule: R4", "no section 'rule:'"),
        ("rule:", "2\nrule:\nconclusion: 2", "nothing stands under 'rule:'"),
        ("rule:", "2\nrule: R4\nrule: R5", "stands more than once"),
        ("rule:", "2\nrule: R4 or so\nfacts: x", "does not match"),
        ("conclusion:", "2\nconclusion: 3", "says '3', the answer begins with '2'"),
        ("facts:", GOOD.replace("2", "1"), "the grade is wrong or missing"),
        ("facts:", GOOD[2:], "the grade is wrong or missing"),
    ],
)
def test_sections_that_do_not(heading, text, saw):
    pattern = r"R\d" if heading == "rule:" else ""
    scorer = section(heading, pattern=pattern, must_equal_grade=heading == "conclusion:")
    (found,) = score(scorer, a_task(grade=2), text)
    assert found.value == 0.0
    assert saw in found.evidence[0].observation


def test_without_strict_the_grade_does_not_matter():
    scorer = section("facts:", strict=False, labels=())
    assert scorer.needs == frozenset()
    found = score(scorer, a_task(), GOOD, GOOD[2:], "2")
    assert values(found) == [1.0, 1.0, 0.0]
    assert found[0].evidence[0].visibility is Visibility.VISIBLE
    agrees = section("conclusion:", strict=False, must_equal_grade=True)
    assert values(score(agrees, a_task(), GOOD, GOOD[2:])) == [1.0, 0.0]


def test_tags_are_closed():
    scorer = section("<rule>", headings=("<facts>", "<rule>"), pattern="R4")
    texts = ("2 <facts>x</facts><rule> R4 </rule> so", "2 <rule>R4", "2 <rule></rule>")
    assert values(score(scorer, a_task(grade=2), *texts)) == [1.0, 0.0, 0.0]


def test_a_pattern_without_end_is_stopped_and_its_neighbours_are_not():
    scorer = section("rule:", pattern="(a+)+b", timeout_s=0.1)
    began = time.monotonic()
    found = score(scorer, a_task(grade=2), "2\nrule: " + "a" * 60, "2\nrule: aab", "2")
    assert time.monotonic() - began < 120
    assert statuses(found) == ["timeout", "ok", "ok"]
    assert values(found) == [None, 1.0, 0.0]


def test_a_recipe_names_them():
    class Recipe(msgspec.Struct):
        rewards: list[RewardConfig]

    tables = [
        {"kind": "grade", "labels": list(LABELS)},
        {"kind": "section", "name": "rule", "heading": "rule:", "labels": list(LABELS)},
    ]
    scorer = build_all(msgspec.convert({"rewards": tables}, Recipe).rewards)
    assert scorer.needs == {"grade"}
    right, wrong = score(scorer, a_task(grade=2), GOOD, GOOD.replace("2", "1"))
    assert right.components == {"grade": 1.0, "rule": 1.0}
    assert wrong.components == {"grade": 0.0, "rule": 0.0}


@given(st.lists(st.sampled_from(["rule:", "why:", "<t>", "</t>", "\n", " ", "x"]), max_size=20))
def test_sections_never_overlap_and_begin_with_their_heading(parts):
    text, headings = "".join(parts), ("rule:", "why:", "<t>")
    found = find_sections(text, headings)
    standing = sorted(s for s in found if s is not None)
    for heading, one in zip(headings, found, strict=True):
        assert one is None or text[one.start : one.body] == heading
        assert one is None or one.start < one.body <= one.body_end <= one.end <= len(text)
        assert (one is not None) or heading not in text.replace(" ", "").splitlines()
    assert all(a.end <= b.start for a, b in itertools.pairwise(standing))
