"""The formula: worked numbers, monotone in every mark, mechanisms that only take away."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from burnish.rewards.judges import quarkmedbench
from burnish.rewards.judges.rubric import (
    MarkedItem,
    Saturation,
    Truncation,
    dialogue_score,
    explain,
    score,
    without_each,
)

TIERS = ("essential", "important", "highlight", "pitfall")
ITEMS = st.lists(
    st.builds(
        MarkedItem, st.sampled_from(TIERS), st.sampled_from([0, 1, 2]), st.floats(0.25, 4),
        st.sampled_from(["", "safety", "care"]),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip
SETTINGS = st.fixed_dictionaries(
    {
        "truncation": st.sampled_from([None, True, Truncation(0.3, 0.7)]),
        "saturation": st.sampled_from([None, True, Saturation(0.5, "tier"), 2.0]),
        "clip": st.booleans(),
    }
)


def marks(**levels: object) -> list[dict[str, object]]:
    return [{"tier": name.rstrip("0123456789"), "level": v} for name, v in levels.items()]


def test_worked_numbers():
    items = marks(essential1=2, essential2=1, important=2, highlight=0, pitfall=1)
    # (2 * 1.5 + 1 + 0 - 2 * 0.5) / (2 * 2 + 1 + 1)
    assert score(items) == pytest.approx(3 / 6)
    equal = dict.fromkeys(TIERS, 1.0)
    assert score(items, tier_weights=equal) == pytest.approx((1.5 + 1 - 0.5) / 4)
    assert score([("essential", 2, 3.0), ("important", 0)]) == pytest.approx(6 / 7)
    assert quarkmedbench.score(items=items, tier_weights=None) == score(items)


def test_all_met_is_one_and_errors_alone_are_negative():
    assert score(marks(essential=2, important=2, highlight=2, pitfall=0)) == 1.0
    worst = marks(essential=0, important=0, pitfall=2)
    assert score(worst) == pytest.approx(-2 / 3)
    assert score(worst, clip=True) == 0.0
    assert score(marks(pitfall=0)) is None
    assert score([]) is None


@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=9), st.sampled_from(TIERS[:3]))
def test_one_tier_of_equal_weights_is_the_plain_mean(levels, tier):
    assert score([(tier, level) for level in levels]) == pytest.approx(
        sum(levels) / 2 / len(levels)
    )


@given(ITEMS, SETTINGS, st.data())
def test_a_better_mark_never_lowers_and_a_worse_error_never_raises(items, settings, data):
    place = data.draw(st.integers(0, len(items) - 1))
    if items[place].level == 2:
        return
    more = [
        *items[:place],
        items[place]._replace(level=items[place].level + 1),
        *items[place + 1 :],
    ]
    before, after = score(items, **settings), score(more, **settings)
    if before is None:
        assert after is None
    elif items[place].tier == "pitfall":
        assert after <= before + 1e-12
    else:
        assert after >= before - 1e-12


@given(ITEMS, SETTINGS, st.randoms(use_true_random=False))
def test_mechanisms_never_raise_and_order_does_not_matter(items, settings, rng):
    plain, found = score(items, clip=settings["clip"]), score(items, **settings)
    if plain is None:
        assert found is None
        return
    assert found <= plain + 1e-12
    shuffled = list(items)
    rng.shuffle(shuffled)
    assert score(shuffled, **settings) == pytest.approx(found)
    free = {"saturation": Saturation(math.inf)}
    if sum(i.tier == "essential" for i in items) == 0:
        assert score(items, **free) == pytest.approx(score(items))


@given(ITEMS, st.floats(0.1, 10))
def test_scaling_all_weights_changes_nothing_but_saturation(items, factor):
    scaled = [item._replace(weight=item.weight * factor) for item in items]
    for truncation in (None, True):
        first, second = (score(rows, truncation=truncation) for rows in (items, scaled))
        assert first == second if first is None else first == pytest.approx(second)


def test_the_cap_of_saturation_is_in_points():
    items = [("essential", 2, 2.0), ("highlight", 2, 1.0, "care"), ("highlight", 2, 1.0, "care")]
    assert score(items, saturation=1.0) == pytest.approx(5 / 6)
    doubled = [(tier, level, 2 * weight, *tag) for tier, level, weight, *tag in items]
    assert score(doubled, saturation=1.0) == pytest.approx(9 / 12)


def test_truncation_is_strict_at_its_thresholds():
    at_half = marks(essential1=2, essential2=0, important=2)
    assert explain(at_half, truncation=True).fired == ()
    below = marks(essential1=1, essential2=0, important=2)
    found = explain(below, truncation=True)
    assert found.fired == ("truncation: essential",)
    assert found.score == pytest.approx(1 / 5)
    minor = marks(essential=2, important=2, pitfall=1)
    assert explain(minor, truncation=True).fired == ()
    major = explain(marks(essential=2, important=2, pitfall=2), truncation=True)
    assert major.fired == ("truncation: pitfall",)
    assert major.score == pytest.approx((2 - 2) / 3)
    assert explain(marks(important=0, highlight=2), truncation=True).fired == ()


def test_the_cap_by_the_essentials_is_twice_their_points_under_any_tier_weights():
    weak = [MarkedItem("essential", 1), *(MarkedItem("highlight", 2, tag=t) for t in "abc")]
    even = dict.fromkeys(TIERS, 1.0)
    # S_E is a half: extras of 3 points are held at 2 S_E = 1, whether essentials weigh 2 or 1.
    assert explain(weak, saturation=True).extras == pytest.approx(1.0)
    assert explain(weak, even, saturation=True).extras == pytest.approx(1.0)
    assert score(weak, even, saturation=True) == pytest.approx((0.5 + 1.0) / 4)


def test_saturation_caps_each_tag_and_then_all_extras_by_the_essentials():
    tagged = [("highlight", 2, 1.0, tag) for tag in ("care", "care", "safety", "", "")]
    items = [("essential", 2), ("essential", 2), *tagged]
    # care 1 of 2, safety 1, untagged 1 of 2: three points; the essentials would allow four.
    assert explain(items, saturation=True).extras == pytest.approx(3)
    weak = [("essential", 1), ("essential", 0), *tagged]
    assert explain(weak, saturation=True).extras == pytest.approx(1)
    assert explain(items, saturation=Saturation(1.0, "tier")).extras == pytest.approx(1)
    assert explain(items, saturation=True).fired == ("saturation",)


def test_saturation_comes_before_truncation():
    items = [("essential", 0), ("essential", 1), ("highlight", 2), ("highlight", 2)]
    both = explain(items, truncation=True, saturation=True)
    assert both.fired == ("saturation", "truncation: essential")
    assert both.extras == 0


def test_missing_marks_are_missing_and_not_zero():
    ten = [("essential", 2)] * 9 + [("essential", None), ("important", 2), ("pitfall", None)]
    found = explain(ten)
    assert found.score == 1.0
    assert found.missing == ("9", "11")
    nine = explain([("essential", 2)] * 8 + [("essential", None)] * 2)
    assert nine.score is None
    assert "8 of 10 essential weight" in nine.reason
    for invalid in (3, -1, 0.5, True, "2", None):
        assert explain(marks(essential=2, important=invalid)).missing == ("1",)


def test_score_without_each_item():
    items = [
        {"id": "a", "tier": "essential", "level": 2},
        {"id": "b", "tier": "important", "level": 0},
    ]
    assert without_each(items) == {"a": 0.0, "b": 1.0}


def test_a_dialogue_is_the_mean_of_its_turns_or_nothing():
    assert dialogue_score([0.5, 1.0]) == 0.75
    assert dialogue_score([0.5, None]) is None
    assert dialogue_score([]) is None
