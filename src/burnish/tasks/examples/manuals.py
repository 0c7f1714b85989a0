"""Questions about made-up devices, each with its fact sheet and a rubric made from the sheet.

    made = make(random.Random(1))
    made["prompt"], made["rubric"]       # a sheet with two asked facts, and how answers are marked

A good answer gives the two asked facts with their numbers. Related facts are extras, a wrong number
and an empty promise are pitfalls. Demonstrations are flawed on purpose: they leave asked facts out,
tell too many others and sometimes get a number wrong. `burnish.rewards.examples.manuals` marks the
items by matching words, so that rubric scoring can be trained on without a judge (QuarkMedBench,
arXiv 2603.13691).
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from burnish.tasks.examples.options import check_shares

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
    rng: random.Random, quality: float = 0.6, errors: float = 0.3, extras: float = 0.7
) -> dict[str, Any]:
    """One question.

    In a demonstration each asked fact is given with probability `quality`, every other fact with
    `extras`; a share `errors` of them has a wrong number or an empty promise.
    """
    check_shares("manuals", quality=quality, errors=errors, extras=extras)
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
