"""What two things cost together, read off a price list: a task whose evidence is a table.

    make(random.Random(1))["evidence"]        # [{"type": "table", "csv": "Item,Price\\nTea,14\\n..."}]
    demonstrate(random.Random(1))             # a solution; now and then a price is misread

An answer has a line for each price, which names the cell that it rests on, and a line with the sum:

    Tea costs 14. [premise: Price of Tea = 14]
    Salt costs 9. [premise: Price of Salt = 9]
    14 + 9 = 23
"""

from __future__ import annotations

import random
from typing import Any

ITEMS = (
    "Tea", "Salt", "Rice", "Soap", "Milk", "Corn", "Rope", "Wool", "Jam", "Nails", "Paper", "Oil",
)  # fmt: skip
ROWS = 5
QUESTION = "How much do {first} and {second} cost together?"
FORM = (
    "Price list:\n{table}\n\n{question} Write one line a price "
    "with the entry it rests on, as in: Tea costs 14. [premise: Price of Tea = 14]. Then one line "
    "with the sum, as in: 14 + 9 = 23"
)


def make(rng: random.Random) -> dict[str, Any]:
    """A price list, a question about two of its items, and the sum."""
    names = rng.sample(ITEMS, ROWS)
    prices = {name: rng.randrange(2, 50) for name in names}
    first, second = rng.sample(names, 2)
    table = "\n".join(["Item,Price", *(f"{name},{price}" for name, price in prices.items())])
    question = QUESTION.format(first=first, second=second)
    return {
        "prompt": FORM.format(table=table, question=question),
        "question": question,
        "answer": str(prices[first] + prices[second]),
        "evidence": [{"type": "table", "csv": table}],
        "items": [first, second],
        "prices": prices,
    }


def solution(items: list[str], read: dict[str, int]) -> str:
    """The lines of an answer by these prices."""
    first, second = (read[name] for name in items)
    lines = [
        f"{name} costs {read[name]}. [premise: Price of {name} = {read[name]}]" for name in items
    ]
    return "\n".join([*lines, f"{first} + {second} = {first + second}"])


def demonstrate(rng: random.Random, misread: float = 0.3) -> dict[str, Any]:
    """A solution for the warm start; each price is another row's with the chance `misread`."""
    row = make(rng)
    prices = row["prices"]
    read = {
        name: rng.choice(list(prices.values())) if rng.random() < misread else prices[name]
        for name in row["items"]
    }
    return {**row, "demonstration": solution(row["items"], read)}
