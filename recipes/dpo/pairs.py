"""Requests with two answers, of which one is preferred.

    make(random.Random(1))                  # {"prompt": ..., "chosen": ..., "rejected": ...}

A request names a topic and a word. The chosen sentence uses both; the rejected one uses another
word, or praises itself. Which of the two is longer says nothing about which is better.
"""

from __future__ import annotations

import random

TOPICS = (
    "baker",
    "fox",
    "sailor",
    "clock",
    "garden",
    "painter",
    "river",
    "teacher",
    "crow",
    "kite",
)
WORDS = ("lantern", "key", "letter", "apple", "stone", "feather", "ribbon", "coin", "bell", "map")
SENTENCES = (
    "The {topic} kept a {word} near the door.",
    "One cold and quiet day the {topic} found a {word} in the snow.",
    "Nobody knew why the {topic} hid the {word}.",
    "By night, when all the others slept, the {topic} came back for the {word}.",
)
PRAISE = ("A wonderful line!", "What a beautiful text.")


def make(rng: random.Random) -> dict[str, str]:
    """One request and its two answers."""
    topic, word = rng.choice(TOPICS), rng.choice(WORDS)
    chosen, rejected = (rng.choice(SENTENCES) for _ in range(2))
    if rng.random() < 0.5:
        other = rng.choice([one for one in WORDS if one != word])
        worse = rejected.format(topic=topic, word=other)
    else:
        worse = f"{rejected.format(topic=topic, word=word)} {rng.choice(PRAISE)}"
    return {
        "prompt": f"Write one sentence about a {topic}. Use the word '{word}'.",
        "chosen": chosen.format(topic=topic, word=word),
        "rejected": worse,
    }
