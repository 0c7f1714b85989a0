"""A rubric's rules, each broken by name; the audit's points."""

from __future__ import annotations

import pytest
from rubric_cases import item, kettle, rubric

from burnish.errors import UserError
from burnish.rewards.judges.rubric import Rubric, Rules, audit_points, joined_audit, rule_audit
from burnish.rewards.judges.rubric.items import CHECKS


def broken(change) -> set[str]:
    content = kettle()
    change(content["items"])
    return {one.rule for one in Rubric.from_dict(content).validate()}


def test_a_well_made_rubric_breaks_no_rule():
    assert rubric().validate() == []


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("items", lambda items: items.pop()),
        ("items", lambda items: items.extend(item(f"h{n}", "highlight") for n in range(2, 14))),
        ("essential", lambda items: items[0].update(tier="important")),
        ("important", lambda items: items[2].update(tier="essential")),
        ("highlight", lambda items: items[3].update(tier="essential")),
        ("pitfall", lambda items: items.extend(item(f"x{n}", "pitfall") for n in (2, 3))),
        ("title", lambda items: items[0].update(title="more than fifteen")),
        ("title", lambda items: items[0].update(title=" ")),
        ("tier", lambda items: items[4].update(tier="nice")),
        ("tag", lambda items: items[0].update(tag="beauty")),
        ("description", lambda items: items[0]["description"].pop("1")),
        ("description", lambda items: items[0]["description"].update({"3": "more"})),
        ("levels", lambda items: items[0]["description"].update({"1": "e1 is not there"})),
        ("weight", lambda items: items[0].update(weight=0)),
        ("id", lambda items: items[0].update(id="")),
        ("exclusive", lambda items: items[1].update(title=items[0]["title"])),
        ("exclusive", lambda items: items[1]["description"].update({"2": "all of e1 essential"})),
    ],
)
def test_each_broken_rule_is_named(rule, change):
    assert rule in broken(change)


def test_every_point_must_be_in_an_item():
    points = [{"id": "p1", "text": "unplug it"}, {"id": "p2", "text": "rinse it"}]
    content = kettle(points=points)
    content["items"][0]["points"] = ["p1"]
    (found,) = Rubric.from_dict(content).validate()
    assert str(found) == "exhaustive: point 'p2' is in no item"


def test_rules_can_be_others():
    long = kettle()
    long["items"][0]["title"] = "a title for European words"
    assert Rubric.from_dict(long).validate(Rules(title_characters=40)) == []


def test_two_items_of_one_id_are_refused_at_load():
    content = kettle()
    content["items"][1]["id"] = "e1"
    with pytest.raises(UserError, match="an id of its own"):
        Rubric.from_dict(content)


def test_the_hash_follows_what_a_judge_reads():
    assert rubric().hash == rubric().hash
    assert rubric(query="other").hash != rubric().hash


def test_the_audit_has_35_points_and_a_veto():
    assert sum(check.points for check in CHECKS.values()) == 35
    title = ("right", "supported", "atomic", "exclusive", "checkable", "exhaustive", "title")
    assert sum(CHECKS[name].points for name in title) == 28
    everything = dict.fromkeys(CHECKS, True)
    assert audit_points(everything).earned == 35
    assert audit_points(everything | {"right": False}) == (26, 35, ("right",), False)
    vetoed = audit_points(everything, safety_omitted=True)
    assert (vetoed.earned, vetoed.quality, vetoed.is_vetoed) == (0, 0.0, True)
    assert audit_points({"tier": True, "right": None}) == (3, 3, (), False)
    assert audit_points({"right": None}).quality is None


def test_rules_decide_what_they_can_and_no_reader_overrules_them():
    assert rule_audit(rubric()) == (13, 13, (), False)
    content = kettle()
    content["items"][0]["title"] = "a title that is far too long"
    bad = Rubric.from_dict(content)
    said = dict.fromkeys(CHECKS, True)
    assert joined_audit(bad, said).failed == ("title",)
    assert joined_audit(bad, {}).possible == 13
    assert joined_audit(rubric(), said | {"right": False}, safety_omitted=True).earned == 0
