"""Questions about made-up devices, each with its fact sheet and a rubric made from the sheet.

    made = make(random.Random(1))
    made["prompt"], made["rubric"]       # a sheet with two asked facts, and how answers are marked

A good answer gives the two asked facts with their numbers. Related facts are extras, a wrong number
and an empty promise are pitfalls. Demonstrations are flawed on purpose: they leave asked facts out,
tell too many others and sometimes get a number wrong. `marks` finds the
items by matching words, so that rubric scoring can be trained on without a judge (QuarkMedBench,
arXiv 2603.13691).

    marks(text, facts, rubric, promise)          # {"voltage": 2, ..., "wrong number": 0}
    graded(text, facts, rubric, promise, truncation=True)

A fact is fully met with its number, partly where only its name stands; another number behind the name
is an error. No judge is asked, so a difference between two recipes is one of the formula alone.
"""

from __future__ import annotations

import random
import re
from typing import Any, NamedTuple

from burnish.boundary import Share
from burnish.rewards.judges.rubric.formula import MarkedItem, explain

DEVICES = ("lamp", "drone", "scale", "radio", "heater", "drill", "clock", "pump", "fan", "kettle")
UNITS = {
    "voltage": "volts",
    "charging": "hours",
    "weight": "grams",
    "warranty": "months",
    "range": "metres",
    "noise": "decibels",
    "width": "millimetres",
    "power": "watts",
}
"""What a sheet may tell, and in which unit."""
FACTS = 6
PROMISE = "it never breaks"
INSTRUCTION = "Answer from the sheet, one fact a sentence."


class Fact(NamedTuple):
    """One line of a sheet."""

    name: str
    value: int

    @property
    def told(self) -> str:
        """The fact as a sentence."""
        return f"{self.name.capitalize()} is {self.value} {UNITS[self.name]}."


def make(
    rng: random.Random, quality: Share = 0.6, errors: Share = 0.3, extras: Share = 0.7
) -> dict[str, Any]:
    """One question.

    In a demonstration each asked fact is given with probability `quality`, every other fact with
    `extras`; a share `errors` of them has a wrong number or an empty promise.
    """
    device = rng.choice(DEVICES)
    facts = [Fact(name, rng.randint(2, 60)) for name in rng.sample(list(UNITS), FACTS)]
    asked, others = facts[:2], facts[2:]
    sheet = rng.sample(facts, FACTS)
    lines = "; ".join(f"{fact.name} {fact.value} {UNITS[fact.name]}" for fact in sheet)
    return {
        "prompt": (
            f"Sheet of the {device}: {lines}. What are its {asked[0].name} and its "
            f"{asked[1].name}? {INSTRUCTION}"
        ),
        "answer": " ".join(fact.told for fact in asked),
        "facts": {fact.name: fact.value for fact in facts},
        "promise": PROMISE,
        "rubric": rubric(device, asked, others),
        "demonstration": _demonstration(rng, asked, others, quality, errors, extras),
    }


def rubric(device: str, asked: list[Fact], others: list[Fact]) -> dict[str, Any]:
    """The items that an answer is marked on; the first of the other facts is the related one."""
    tiers = [("essential", fact) for fact in asked]
    tiers += [("important" if k == 0 else "highlight", fact) for k, fact in enumerate(others)]
    items = [
        {
            "id": fact.name,
            "title": fact.name,
            "tier": tier,
            "tag": "information quality" if tier == "essential" else "readability",
            "description": {
                "0": f"the {fact.name} is not named",
                "1": f"the {fact.name} is named without its number",
                "2": f"the {fact.name} is {fact.value} {UNITS[fact.name]}",
            },
        }
        for tier, fact in tiers
    ]
    items.append(_pitfall("wrong number", "no number is wrong", "one number", "several numbers"))
    items.append(_pitfall("empty promise", "nothing is promised", "a hint", f"'{PROMISE}'"))
    return {"query": f"facts of the {device}", "items": items}


def _pitfall(title: str, none: str, minor: str, major: str) -> dict[str, Any]:
    return {
        "id": title,
        "title": title,
        "tier": "pitfall",
        "tag": "safety",
        "description": {"0": none, "1": f"{minor}: {title}", "2": f"{major}: {title}"},
    }


def _demonstration(
    rng: random.Random,
    asked: list[Fact],
    others: list[Fact],
    quality: float,
    errors: float,
    extras: float,
) -> str:
    told = [fact for fact in asked if rng.random() < quality]
    told += [fact for fact in others if rng.random() < extras]
    if not told:
        told = [asked[0]]
    said = [fact.told for fact in told]
    if rng.random() < errors:
        if rng.random() < 0.5:
            place = rng.randrange(len(told))
            said[place] = told[place]._replace(value=told[place].value + rng.randint(1, 9)).told
        else:
            said.append(f"And {PROMISE}.")
    return " ".join(said)


EQUAL = {"essential": 1.0, "important": 1.0, "highlight": 1.0, "pitfall": 1.0}
WRONG_NUMBER, EMPTY_PROMISE = "wrong number", "empty promise"
BETWEEN = 12
"""Characters between the name of a fact and its number."""


def marks(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> dict[str, int]:
    """The level of every item of the rubric."""
    said = " ".join(text.lower().split())
    levels: dict[str, int] = {}
    wrong = 0
    for name, value in facts.items():
        found = re.findall(rf"\b{re.escape(name)}\b([^\d.]{{0,{BETWEEN}}}(\d+))?", said)
        numbers = {int(number) for _, number in found if number}
        levels[name] = 0 if not found else 2 if numbers == {value} else 1
        wrong += bool(numbers - {value})
    levels[WRONG_NUMBER] = min(wrong, 2)
    levels[EMPTY_PROMISE] = 2 if promise in said else 0
    return {item["id"]: levels[item["id"]] for item in rubric["items"]}


def graded(
    text: str,
    facts: dict[str, int],
    rubric: dict[str, Any],
    promise: str,
    equal: bool = False,
    truncation: bool = False,
    saturation: bool = False,
) -> float | None:
    """The rubric's score; `equal` counts every tier alike."""
    return explain(
        _items(text, facts, rubric, promise),
        EQUAL if equal else None,
        truncation=truncation,
        saturation=saturation,
    ).score


def essentials(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> float:
    """The share of the asked facts that is met."""
    return _share(text, facts, rubric, promise, ("essential",))


def extras(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> float:
    """The share of the other facts that is told."""
    return _share(text, facts, rubric, promise, ("important", "highlight"))


def pitfalls(text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str) -> float:
    """1 where the answer has an error or an empty promise, else 0."""
    return float(_share(text, facts, rubric, promise, ("pitfall",)) > 0)


def _share(
    text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str, tiers: tuple[str, ...]
) -> float:
    own = [item for item in _items(text, facts, rubric, promise) if item.tier in tiers]
    return sum((item.level or 0.0) / 2 for item in own) / len(own)


def _items(
    text: str, facts: dict[str, int], rubric: dict[str, Any], promise: str
) -> list[MarkedItem]:
    found = marks(text, facts, rubric, promise)
    return [
        MarkedItem(item["tier"], found[item["id"]], tag=item["tag"], id=item["id"])
        for item in rubric["items"]
    ]
