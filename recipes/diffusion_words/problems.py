"""Word problems of two or three steps, made from a seed, with their steps written out.

    [task]
    kind = "function"
    path = "problems.py:make"

The demonstration has one line a step and ends with `#### ANSWER`, as GSM8K writes it. Numbers are held
out, not sentences: no problem of the held-out side is trained.
"""

from __future__ import annotations

from random import Random
from typing import Any

from burnish.errors import UserError

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Leo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps")


def make(rng: Random, steps: int = 0) -> dict[str, Any]:
    """One problem of 2 or 3 steps; `steps` 0: either."""
    if steps not in (0, 2, 3):
        raise UserError(f"problems: steps = {steps}; expected 2, 3 or 0 for either.")
    count = steps or rng.choice((2, 3))
    who, thing = rng.choice(PEOPLE), rng.choice(THINGS)
    have = rng.randint(2, 20)
    said = [f"{who} has {have} {thing}."]
    lines = []
    for _ in range(count):
        kind = _kind(rng, have)
        if kind == "gets":
            more = rng.randint(2, 20)
            said.append(f"{who} gets {more} more.")
            lines.append(f"{have}+{more}={have + more}")
            have += more
        elif kind == "gives":
            fewer = rng.randint(1, have - 1)
            said.append(f"{who} gives {fewer} away.")
            lines.append(f"{have}-{fewer}={have - fewer}")
            have -= fewer
        else:
            said.append(f"Then {who} finds as many again.")
            lines.append(f"{have}*2={have * 2}")
            have *= 2
    question = " ".join([*said, f"How many {thing} has {who} now?"])
    return {
        "prompt": question,
        "answer": str(have),
        "demonstration": "\n".join([*lines, f"#### {have}"]),
        "split_by": "\n".join(lines),
    }


def _kind(rng: Random, have: int) -> str:
    """What happens next: numbers stay small, and nobody gives the last thing away."""
    if have > 40:
        return "gives"
    return rng.choice(("gets", "gives", "doubles") if have >= 2 else ("gets", "doubles"))
