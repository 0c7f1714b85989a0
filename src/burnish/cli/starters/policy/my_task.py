"""The questions: `make` is called with a random generator and gives one task."""

from __future__ import annotations

import random
from typing import Any


def make(rng: random.Random, largest: int = 20) -> dict[str, Any]:
    """One question. `prompt` is what the model sees; every other key is a field for rewards."""
    a, b = rng.randint(1, largest), rng.randint(1, largest)
    return {"prompt": f"What is {a} + {b}? Reply with the number only.", "answer": str(a + b)}
