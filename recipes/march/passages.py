"""Towns in four passages: a report with numbers, and a writer that sometimes trusts its memory.

    make(random.Random(1))["documents"]          # two passages about the town, two about others
    demonstrate(random.Random(1))                # an example of one of the three roles

Every town has a number for each attribute that the examples of the warm start keep repeating: the
prior. In `conflict` of the facts the passages say another one. The examples state the prior instead of
the passage with probability `by_heart`, as writer and as reader: a model that hallucinates, and checks
badly. `report` and `question` fix the forms, so that what a report states can be read exactly.
"""

from __future__ import annotations

import random
import re
from typing import Any

from burnish.records import Response
from burnish.rewards.judges.march.roles import (
    NUMBERS,
    checker_messages,
    proposer_messages,
    sighted_messages,
    solver_messages,
)
from burnish.seeds import derive

TOWNS = (
    "Arlen", "Borvik", "Calder", "Dunmere", "Elsby", "Farrow", "Garlin", "Hestad", "Ivelby",
    "Jorva", "Kelsey", "Lorne", "Marvik", "Norby", "Orsted", "Pelham",
)  # fmt: skip
THINGS = ("bridges", "schools", "parks", "mills", "inns", "wells")
ASKED = 3
"""Facts of a report."""
_FACT = re.compile(r"(\d{1,4}) (" + "|".join(THINGS) + r")\b")

Facts = dict[str, int]


def prior(town: str, thing: str) -> int:
    """The number that a model remembers."""
    return 2 + derive("prior", town, thing) % 97


def make(rng: random.Random, conflict: float = 0.4) -> dict[str, Any]:
    """A question about one town and four passages; `facts` is what the passages say."""
    town, first, second = rng.sample(TOWNS, 3)
    things = rng.sample(THINGS, ASKED)
    facts = {thing: _stated(rng, town, thing, conflict) for thing in things}
    told = [
        report(town, dict(list(facts.items())[:2])),
        report(town, dict(list(facts.items())[2:])),
    ]
    told += [
        report(
            other, {thing: _stated(rng, other, thing, conflict) for thing in rng.sample(things, 2)}
        )
        for other in (first, second)
    ]
    documents = rng.sample(told, len(told))
    query = f"How many {', '.join(things[:-1])} and {things[-1]} does {town} have?"
    (message,) = solver_messages(query, documents, NUMBERS)
    return {
        "prompt": message.text,
        "query": query,
        "documents": documents,
        "town": town,
        "facts": facts,
        "answer": report(town, facts),
    }


def _stated(rng: random.Random, town: str, thing: str, conflict: float) -> int:
    known = prior(town, thing)
    if rng.random() >= conflict:
        return known
    return rng.choice([number for number in range(2, 99) if number != known])


def report(town: str, facts: Facts) -> str:
    """`Arlen has 14 bridges, 3 parks and 7 wells.`"""
    parts = [f"{number} {thing}" for thing, number in facts.items()]
    joined = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{town} has {joined}."


def question(town: str, thing: str) -> str:
    """The one way to ask for a fact."""
    return f"How many {thing} does {town} have?"


def read_facts(text: str) -> Facts:
    """What a report states; of a thing that is named twice the first number counts."""
    found: Facts = {}
    for number, thing in _FACT.findall(text):
        found.setdefault(thing, int(number))
    return found


def demonstrate(
    rng: random.Random,
    conflict: float = 0.4,
    by_heart: float = 0.3,
    sighted: float = 0.0,
    nod: float = 0.8,
) -> dict[str, Any]:
    """An example of one role: the writer and the reader trust their memory now and then.

    In a share `sighted` of the reader's examples it also sees the answer under test, and repeats what
    that says with probability `nod`: the start of a control with sighted readers.
    """
    row = make(rng, conflict)
    town, facts = row["town"], row["facts"]

    def remembered(told: Facts) -> Facts:
        return {t: prior(town, t) if rng.random() < by_heart else n for t, n in told.items()}

    role = rng.choice(("solver", "proposer", "checker", "checker"))
    if role == "solver":
        return {
            "prompt": row["prompt"],
            "demonstration": report(town, remembered(facts)),
            "role": role,
        }
    asked = list(facts)
    if role == "proposer":
        stated = remembered(facts)
        (message,) = proposer_messages(row["query"], report(town, stated), NUMBERS)
        lines = [f"- Question: {question(town, t)} [Answer: {stated[t]}]" for t in asked]
        return {"prompt": message.text, "demonstration": "\n".join(lines), "role": role}
    asked = rng.sample(asked, rng.randint(1, ASKED))
    questions = [question(town, t) for t in asked]
    (message,) = checker_messages(row["documents"], questions, NUMBERS)
    found = remembered(facts)
    if rng.random() < sighted:
        shown = remembered(facts)
        (message,) = sighted_messages(row["documents"], questions, report(town, shown), NUMBERS)
        found = {t: shown[t] if rng.random() < nod else n for t, n in found.items()}
        role = "sighted"
    lines = [
        f"{n}. Evidence: {town} has {found[t]} {t}. [Answer: {found[t]}]"
        for n, t in enumerate(asked, start=1)
    ]
    return {"prompt": message.text, "demonstration": "\n".join(lines), "role": role}


def faithful(response: Response, facts: Facts) -> float | None:
    """The gold that no step is paid by: share of the asked facts that the report states rightly.

    A fact that is left out is not right. Checkers have none.
    """
    if response.info.get("march", {}).get("role") == "checker":
        return None
    stated = read_facts(response.text)
    return sum(stated.get(thing) == number for thing, number in facts.items()) / len(facts)
