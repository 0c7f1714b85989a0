"""The prompts: `make` is called with a random generator and gives one task."""

from __future__ import annotations

import random
from typing import Any

THINGS = ("a kite", "bread", "the moon", "a river", "salt", "a violin", "rain", "a lighthouse")
QUESTIONS = (
    "What is {}?",
    "Tell me about {}.",
    "Why do people like {}?",
    "Describe {} to a child.",
)


def make(rng: random.Random) -> dict[str, Any]:
    """One prompt. A fifth of all different prompts is held out and never trained on."""
    return {"prompt": rng.choice(QUESTIONS).format(rng.choice(THINGS))}
