"""Sums worked out step by step, with the place of the first wrong step.

    make(random.Random(1))      # {"prompt": ..., "steps": [...], "labels": [...]}

In half of the solutions one step adds wrongly; what follows goes on from the wrong sum and has no
label. Steps, lengths and numbers say nothing of where the mistake is: only the sum does.
"""

from __future__ import annotations

import random
from typing import Any


def make(rng: random.Random) -> dict[str, Any]:
    """One sum and a solution of it."""
    numbers = [rng.randint(1, 9) for _ in range(rng.randint(3, 5))]
    wrong = rng.randrange(len(numbers) - 1) if rng.random() < 0.5 else None
    steps, labels = [], []
    total = numbers[0]
    for place, number in enumerate(numbers[1:]):
        slip = rng.choice([-2, -1, 1, 2]) if place == wrong else 0
        steps.append(f"{total} + {number} = {total + number + slip}")
        labels.append(None if wrong is not None and place > wrong else int(place != wrong))
        total += number + slip
    return {
        "prompt": f"Add up {', '.join(map(str, numbers))}.",
        "steps": steps,
        "labels": labels,
    }
