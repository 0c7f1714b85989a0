"""Shop search with one common rule and ten rare ones, answered grade first.

    make(random.Random(1))["demonstration"]     # "A\\nrule: category\\nwhy: the item is a mug"

A query meets an item; the grade is A (exact), B (close), C (partly) or D (not at all). The head
rule compares kinds of things alone. Each tail rule is a condition in the query that a head-only
reader overlooks: the item is of the right kind, but by the banned brand, over the price limit, and
so on. `head_grade` is what that reader would answer; a reward that checks it is wrong on exactly
the tail, which is how AFRL's experiment drives rare rules out of a model (arXiv 2602.10006).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from burnish.boundary import Share
from burnish.errors import UserError, did_you_mean

GRADES = ("A", "B", "C", "D")
HEAD_RULE = "category"

DEPARTMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "kitchen": (("mug", "cup", "glass"), ("kettle", "teapot", "pan")),
    "wardrobe": (("jacket", "coat", "parka"), ("shoe", "sandal", "boot")),
    "living room": (("chair", "stool", "bench"), ("lamp", "lantern", "torch")),
    "garden": (("spade", "shovel", "rake"), ("tent", "hammock", "parasol")),
}
"""Department -> families of things that can stand in for each other."""

BRANDS = ("Norvo", "Kelda", "Tarn", "Brio", "Luma", "Fenn")
COLOURS = ("red", "blue", "green", "black", "white", "grey")
MATERIALS = ("steel", "cotton", "plastic", "bamboo")
SIZES = ("small", "medium", "large")
EXTRAS = ("bag", "strap", "cover", "stand")
PACKS = (1, 2, 4, 6)
PRICES = tuple(range(10, 100, 5))
WEARERS = ("adults", "children")
PLAIN_QUERIES = ("{kind}", "buy a {kind}", "a good {kind}", "{kind} for sale")

INSTRUCTION = (
    "Grade how well the item fits the query: A exact, B close, C partly, D not at all. "
    "Write the letter, then a line 'rule:' and a line 'why:'."
)


@dataclass(frozen=True)
class Item:
    """What a shop offers."""

    kind: str
    brand: str
    colour: str
    material: str
    size: str
    extra: str
    pack: int
    used: bool
    wearer: str
    price: int
    is_case: bool = False
    """A case for the thing, and not the thing itself."""

    @property
    def text(self) -> str:
        what = f"{self.colour} {self.material} {self.kind}"
        if self.is_case:
            what = f"case for a {what}"
        extra = f" with a {self.extra}" if self.extra else ""
        condition = "used" if self.used else "new"
        return (
            f"{what}{extra} by {self.brand}, {self.size}, pack of {self.pack}, {condition}, "
            f"for {self.wearer}, {self.price} dollars"
        )


class Case(NamedTuple):
    """A query, an item, and the fact that decides."""

    query: str
    item: Item
    why: str


class TailRule(NamedTuple):
    """A condition that only some queries carry."""

    grade: str
    """Of an item that breaks it; one that meets it stays an A."""
    draw: Callable[[random.Random, Item, bool], Case]
    """From an item of the queried kind and whether the condition is to be broken."""


def make(
    rng: random.Random,
    tail: Share = 0.03,
    rule: str = "",
    broken: Share = 0.7,
    head_only_reward: bool = False,
) -> dict[str, Any]:
    """One query with one item.

    `tail` is the share of queries with a tail rule, drawn evenly from the ten; `rule` asks for one
    rule always. `broken` is the share of tail items that break their condition: below 1, so that
    the condition must be compared and not merely noticed. `head_only_reward` adds `head_grade`.
    """
    if rule and rule not in RULES:
        raise UserError(
            f"task option 'rule' of shop_search is '{rule}'; expected one of "
            f"{', '.join(RULES)}.{did_you_mean(rule, RULES)}"
        )
    drawn_rule = rng.choice(tuple(TAIL_RULES)) if rng.random() < tail else HEAD_RULE
    used_rule = rule or drawn_rule
    kind = rng.choice(_KINDS)
    if used_rule == HEAD_RULE:
        head_grade = grade = rng.choices(GRADES, (3, 2, 2, 2))[0]
        case = _head_case(rng, kind, grade)
    else:
        is_broken = rng.random() < broken
        head_grade = "A"
        grade = TAIL_RULES[used_rule].grade if is_broken else "A"
        case = TAIL_RULES[used_rule].draw(rng, _item(rng, kind), is_broken)
    fields: dict[str, Any] = {
        "prompt": f"{INSTRUCTION}\nQuery: {case.query}\nItem: {case.item.text}",
        "answer": grade,
        "grade": grade,
        "rule": used_rule,
        "head": used_rule == HEAD_RULE,
        "demonstration": f"{grade}\nrule: {used_rule}\nwhy: {case.why}",
    }
    return {**fields, "head_grade": head_grade} if head_only_reward else fields


def head_grade(wanted: str, offered: str) -> str:
    """The head rule: the same kind, a kind of the same family, of the same department, or not."""
    if wanted == offered:
        return "A"
    (department, family), (other_department, other_family) = _PLACE[wanted], _PLACE[offered]
    if department != other_department:
        return "D"
    return "B" if family == other_family else "C"


_PLACE = {
    kind: (department, number)
    for department, families in DEPARTMENTS.items()
    for number, family in enumerate(families)
    for kind in family
}
_KINDS = tuple(_PLACE)


def _item(rng: random.Random, kind: str) -> Item:
    return Item(
        kind=kind,
        brand=rng.choice(BRANDS),
        colour=rng.choice(COLOURS),
        material=rng.choice(MATERIALS),
        size=rng.choice(SIZES),
        extra=rng.choice(("", *EXTRAS)),
        pack=rng.choice(PACKS),
        used=rng.random() < 0.3,
        wearer=rng.choice(WEARERS),
        price=rng.choice(PRICES),
    )


def _head_case(rng: random.Random, wanted: str, grade: str) -> Case:
    offered = rng.choice([kind for kind in _KINDS if head_grade(wanted, kind) == grade])
    place = _PLACE[wanted][0]
    why = {
        "A": f"the item is a {wanted}",
        "B": f"a {offered} is close to a {wanted}",
        "C": f"a {offered} is also for the {place}",
        "D": f"a {offered} is not for the {place}",
    }[grade]
    query = rng.choice(PLAIN_QUERIES).format(kind=wanted)
    return Case(query, _item(rng, offered), why)


def _other(rng: random.Random, values: tuple[Any, ...], value: Any) -> Any:
    return rng.choice([other for other in values if other != value])


def _negation(rng: random.Random, item: Item, broken: bool) -> Case:
    banned = rng.choice(EXTRAS)
    item = replace(item, extra=banned if broken else _other(rng, ("", *EXTRAS), banned))
    why = f"it {'comes with a' if broken else 'has no'} {banned}"
    return Case(f"{item.kind} without a {banned}", item, why)


def _brand_ban(rng: random.Random, item: Item, broken: bool) -> Case:
    banned = item.brand if broken else _other(rng, BRANDS, item.brand)
    return Case(f"{item.kind}, not by {banned}", item, f"it is by {item.brand}")


def _colour_ban(rng: random.Random, item: Item, broken: bool) -> Case:
    banned = item.colour if broken else _other(rng, COLOURS, item.colour)
    return Case(f"{item.kind} in any colour but {banned}", item, f"it is {item.colour}")


def _size(rng: random.Random, item: Item, broken: bool) -> Case:
    wanted = _other(rng, SIZES, item.size) if broken else item.size
    return Case(f"{item.kind} of size {wanted}", item, f"it is {item.size}")


def _material(rng: random.Random, item: Item, broken: bool) -> Case:
    wanted = _other(rng, MATERIALS, item.material) if broken else item.material
    return Case(f"{item.kind} made of {wanted}", item, f"it is {item.material}")


def _quantity(rng: random.Random, item: Item, broken: bool) -> Case:
    wanted = _other(rng, PACKS, item.pack) if broken else item.pack
    return Case(f"{item.kind}, pack of {wanted}", item, f"it is a pack of {item.pack}")


def _wearer(rng: random.Random, item: Item, broken: bool) -> Case:
    wanted = _other(rng, WEARERS, item.wearer) if broken else item.wearer
    return Case(f"{item.kind} for {wanted}", item, f"it is for {item.wearer}")


def _price(rng: random.Random, item: Item, broken: bool) -> Case:
    limit = rng.choice((30, 40, 50, 60, 70))
    prices = [price for price in PRICES if (price > limit) == broken]
    item = replace(item, price=rng.choice(prices))
    side = "over" if broken else "within"
    return Case(
        f"{item.kind} up to {limit} dollars", item, f"{item.price} is {side} the limit of {limit}"
    )


def _condition(rng: random.Random, item: Item, broken: bool) -> Case:
    wants_new = rng.random() < 0.7
    item = replace(item, used=wants_new == broken)
    wanted = "new" if wants_new else "used"
    return Case(f"{item.kind}, only {wanted}", item, f"it is {'used' if item.used else 'new'}")


def _accessory(rng: random.Random, item: Item, broken: bool) -> Case:
    query = rng.choice(PLAIN_QUERIES).format(kind=item.kind)
    if broken:
        return Case(query, replace(item, is_case=True), f"it is a case and not a {item.kind}")
    return Case(query, replace(item, extra="case"), f"it is a {item.kind} and has a case")


TAIL_RULES: dict[str, TailRule] = {
    "negation": TailRule("D", _negation),
    "brand-ban": TailRule("D", _brand_ban),
    "colour-ban": TailRule("D", _colour_ban),
    "wearer": TailRule("D", _wearer),
    "accessory": TailRule("C", _accessory),
    "price": TailRule("C", _price),
    "size": TailRule("C", _size),
    "condition": TailRule("C", _condition),
    "material": TailRule("B", _material),
    "quantity": TailRule("B", _quantity),
}
RULES = (HEAD_RULE, *TAIL_RULES)
"""Every id that may stand behind `rule:`."""
