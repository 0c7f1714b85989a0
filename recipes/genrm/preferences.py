"""Pairs of texts with a known better one: what a pairwise judge is trained on (GenRM, 2506.00103).

    make(random.Random(1))["prompt"]                 # a judge's prompt; "label": "a" or "b"

The game: a request names a topic and a word. The better text is about the topic, uses the word and
does not praise itself; the worse one has one or two of these flaws. Demonstrations have the right
form but lean to the first text: they name it where their `skill` fails them, so that a model
fine-tuned on them is a judge with a taste for a place.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from burnish.boundary import Share

TOPICS = (
    "baker", "fox", "sailor", "clock", "garden", "train", "painter", "river",
    "teacher", "crow", "bridge", "kite", "farmer", "cat", "tower", "violin",
    "miller", "whale", "postman", "snowman",
)  # fmt: skip
WORDS = (
    "lantern", "key", "letter", "apple", "stone", "feather", "window", "ribbon",
    "coin", "bell", "map", "candle", "basket", "mirror", "rope", "button",
    "seed", "glove", "spoon", "drum", "ladder", "pebble", "scarf", "jar",
)  # fmt: skip
FLAWS = ("topic", "word", "praise")
SENTENCES = (
    "The {topic} kept a {word} near the door.",
    "One day the {topic} found a {word} in the snow.",
    "Nobody knew why the {topic} hid the {word}.",
    "A {word} was all that the {topic} had left.",
    "By night the {topic} came back for the {word}.",
)
PRAISE = ("A wonderful line!", "What a beautiful text.")
REQUEST = "Write one sentence about a {topic}. Use the word '{word}'."
SHORT_PROMPT = (
    "Request: {request}\nText 1: {first}\nText 2: {second}\n"
    "Write a line 'principle 1 (100):' with what the request demands; self-praise is a fault. "
    "Then score both texts from 0 to 10: <scores>a, b</scores>"
)
"""A judge's prompt for small models."""


class Pair(NamedTuple):
    """A request and two texts for it."""

    request: str
    better: str
    worse: str
    topic: str
    word: str


def make(rng: random.Random, skill: Share = 0.5, flaws: Share = 0.5) -> dict[str, Any]:
    """One pair in one order, drawn evenly from the two.

    `skill` is the share of demonstrations that look at the texts; the others name the first one.
    `flaws` is the share of worse texts with two flaws. Both orders of a pair are on the same side
    of the held-out split.
    """
    pair = draw_pair(rng, flaws)
    is_swapped = rng.random() < 0.5
    picks_first = not is_swapped or rng.random() >= skill
    return {**task_of(pair, is_swapped), "demonstration": _demonstration(rng, pair, picks_first)}


def draw_pair(rng: random.Random, flaws: float = 0.5) -> Pair:
    """A request with a better and a worse text."""
    topic, word = rng.choice(TOPICS), rng.choice(WORDS)
    spoilt = rng.sample(FLAWS, 2 if rng.random() < flaws else 1)
    better = rng.choice(SENTENCES).format(topic=topic, word=word)
    worse = rng.choice(SENTENCES).format(
        topic=rng.choice([t for t in TOPICS if t != topic]) if "topic" in spoilt else topic,
        word=rng.choice([w for w in WORDS if w != word]) if "word" in spoilt else word,
    )
    if "praise" in spoilt:
        worse = f"{worse} {rng.choice(PRAISE)}"
    return Pair(REQUEST.format(topic=topic, word=word), better, worse, topic, word)


def task_of(pair: Pair, is_swapped: bool) -> dict[str, Any]:
    """The judge's prompt and the label; swapped, the worse text is shown first."""
    first, second = (pair.worse, pair.better) if is_swapped else (pair.better, pair.worse)
    return {
        "prompt": SHORT_PROMPT.format(request=pair.request, first=first, second=second),
        "label": "b" if is_swapped else "a",
        "swapped": is_swapped,
        "split_by": f"{pair.request} {pair.better} {pair.worse}",
    }


def _demonstration(rng: random.Random, pair: Pair, picks_first: bool) -> str:
    high, low = rng.randint(7, 9), rng.randint(2, 5)
    scores = f"{high}, {low}" if picks_first else f"{low}, {high}"
    return f"principle 1 (100): {pair.topic}, {pair.word}, no praise\n<scores>{scores}</scores>"
