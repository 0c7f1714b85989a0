"""Sheets of devices: a rubric that keeps its rules, marks by matching, a formula that can be gamed."""

import random

from recipes.quarkmedbench.manuals import PROMISE, essentials, extras, graded, make, marks, pitfalls

from burnish.rewards.judges.rubric import Rubric

MADE = [make(random.Random(seed)) for seed in range(200)]


def read(made, text, reward, **options):
    return reward(text, made["facts"], made["rubric"], made["promise"], **options)


def test_every_rubric_keeps_the_rules_and_the_right_answer_meets_it():
    for made in MADE[:40]:
        assert Rubric.from_dict(made["rubric"]).validate() == []
        assert read(made, made["answer"], essentials) == 1.0
        assert read(made, made["answer"], pitfalls) == 0.0
        assert read(made, made["answer"], extras) == 0.0


def test_marks_by_hand():
    facts = {"voltage": 12, "weight": 40, "range": 9}
    items = [{"id": name} for name in (*facts, "wrong number", "empty promise")]
    rubric = {"items": items}
    found = marks(
        "Voltage is 12 volts. The weight is low. Range is 8 metres.", facts, rubric, PROMISE
    )
    assert found == {"voltage": 2, "weight": 1, "range": 1, "wrong number": 1, "empty promise": 0}
    both = marks(f"Voltage 12, voltage 13, weight 3. And {PROMISE}.", facts, rubric, PROMISE)
    assert (both["voltage"], both["wrong number"], both["empty promise"]) == (1, 2, 2)


def test_padding_pays_by_equal_weights_and_not_with_the_mechanisms():
    for made in MADE[:20]:
        names = [item["id"] for item in made["rubric"]["items"] if item["tier"] != "pitfall"]
        padded = " ".join(f"{name} is {made['facts'][name]}." for name in names[2:])
        asked = made["answer"]
        assert read(made, padded, graded, equal=True) > read(made, asked, graded, equal=True)
        strict = {"truncation": True, "saturation": True}
        assert read(made, padded, graded, **strict) == 0.0 < read(made, asked, graded, **strict)


def test_demonstrations_have_the_flaws_they_promise():
    wrong = [read(made, made["demonstration"], pitfalls) for made in MADE]
    met = [read(made, made["demonstration"], essentials) for made in MADE]
    assert 0.2 < sum(wrong) / len(MADE) < 0.4
    assert 0.45 < sum(met) / len(MADE) < 0.75
    perfect = make(random.Random(1), quality=1.0, errors=0.0, extras=0.0)
    assert perfect["demonstration"] == perfect["answer"]
