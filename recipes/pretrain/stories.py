"""Small stories and sums, made by a script: enough text to see a model learn to write.

A document is a story of a few sentences, or a few lines of sums. The words are few and the grammar is
strict, so that a model of some hundred thousand weights writes whole sentences after minutes on a
CPU, and names, places and results have to be carried from one sentence to the next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

COUNT = 12_000
"""Documents; about 2.6 MB."""
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lea")
ANIMALS = ("cat", "dog", "duck", "fox", "frog", "goat", "hen", "mouse", "owl", "pony", "rabbit")
PLACES = (
    "barn",
    "bridge",
    "forest",
    "garden",
    "hill",
    "house",
    "lake",
    "market",
    "meadow",
    "river",
)
THINGS = ("apple", "ball", "bell", "book", "coin", "drum", "hat", "kite", "lamp", "ring", "spoon")
COLOURS = ("blue", "brown", "green", "grey", "red", "white", "yellow")
MOODS = ("glad", "calm", "proud", "tired", "brave", "sleepy")


def documents() -> Iterator[str]:
    """The same texts every time."""
    for index in range(COUNT):
        rng = random.Random(index)
        yield sums(rng) if rng.random() < 0.25 else story(rng)


def story(rng: random.Random) -> str:
    """Somebody loses a thing, and somebody else finds it."""
    who, friend = rng.sample(NAMES, 2)
    animal, thing, colour = rng.choice(ANIMALS), rng.choice(THINGS), rng.choice(COLOURS)
    here, there = rng.sample(PLACES, 2)
    mood, number = rng.choice(MOODS), rng.randint(2, 9)
    lines = [
        f"Once there was a {animal} named {who}, who lived by the {here}.",
        f"{who} had a {colour} {thing}.",
        f"One day {who} took the {thing} to the {there} and lost it.",
        f"{who} looked for {number} hours and did not find the {thing}.",
        f'"Have you seen my {colour} {thing}?" said {who}.',
        f'"It is at the {there}," said {friend}.',
        f"So {who} and {friend} went to the {there}, and there was the {colour} {thing}.",
        f"{who} was {mood}, and they walked home to the {here}.",
    ]
    kept = [line for place, line in enumerate(lines) if place not in (3, 4) or rng.random() < 0.6]
    return " ".join(kept) + "\n"


def sums(rng: random.Random) -> str:
    """A few lines such as `12 + 7 = 19`."""
    lines = []
    for _ in range(rng.randint(4, 9)):
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        sign = rng.choice("+-")
        lines.append(f"{a} {sign} {b} = {a + b if sign == '+' else a - b}")
    return "\n".join(lines) + "\n"
