"""Requests that state one to three demands a program can check, as IFEval does.

    make(random.Random(1))
    # {"prompt": "Write about rivers. Use at least 30 words. Do not use any commas.",
    #  "instruction_id_list": [...], "kwargs": [...]}

The ids and arguments are those of `burnish.rewards.checks.instructions`, so that the reward needs no
model: `skills/instruction_following` checks them (Skill-RM, arXiv 2606.03980).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

TOPICS = (
    "rivers", "bread", "clocks", "winter", "bicycles", "honey", "maps", "owls",
    "trains", "gardens", "paper", "volcanoes", "chess", "islands", "rain", "markets",
    "lighthouses", "tea", "bridges", "deserts", "violins", "foxes", "windmills", "salt",
)  # fmt: skip
FORMS = ("Write about {}.", "Tell me something about {}.", "Explain {} to a child.", "Describe {}.")
KEYWORDS = ("water", "green", "old", "quiet", "small", "work", "light", "stone")


class Demand(NamedTuple):
    """A sentence of the request, and how it is checked."""

    text: str
    id: str
    arguments: dict[str, Any]


def _words(rng: random.Random) -> Demand:
    count = rng.choice((10, 15, 20, 25, 30))
    relation = rng.choice(("at least", "less than"))
    arguments = {"relation": relation, "num_words": count}
    return Demand(f"Use {relation} {count} words.", "length_constraints:number_words", arguments)


def _sentences(rng: random.Random) -> Demand:
    count = rng.choice((2, 3, 4))
    relation = rng.choice(("at least", "less than"))
    arguments = {"relation": relation, "num_sentences": count}
    text = f"Answer in {relation} {count} sentences."
    return Demand(text, "length_constraints:number_sentences", arguments)


def _bullets(rng: random.Random) -> Demand:
    count = rng.choice((2, 3, 4))
    text = f"Use exactly {count} bullet points that start with *."
    return Demand(text, "detectable_format:number_bullet_lists", {"num_bullets": count})


def _keyword(rng: random.Random) -> Demand:
    word = rng.choice(KEYWORDS)
    return Demand(f'Use the word "{word}".', "keywords:existence", {"keywords": [word]})


def _forbidden(rng: random.Random) -> Demand:
    word = rng.choice(("the", "is", "and"))
    text = f'Never use the word "{word}".'
    return Demand(text, "keywords:forbidden_words", {"forbidden_words": [word]})


def _plain(text: str, id: str) -> Callable[[random.Random], Demand]:
    return lambda rng: Demand(text, id, {})


KINDS: dict[str, tuple[Callable[[random.Random], Demand], ...]] = {
    "length": (_words, _sentences),
    "punctuation": (_plain("Do not use any commas.", "punctuation:no_comma"),),
    "case": (
        _plain("Use small letters only.", "change_case:english_lowercase"),
        _plain("Use capital letters only.", "change_case:english_capital"),
    ),
    "frame": (
        _plain("Put your whole answer in double quotation marks.", "startend:quotation"),
        _plain(
            "Begin with a title in double angular brackets, such as <<title>>.",
            "detectable_format:title",
        ),
        _bullets,
    ),
    "words": (_keyword, _forbidden),
}
"""At most one demand of each kind, so that no two contradict each other."""


def make(rng: random.Random, most: int = 3) -> dict[str, Any]:
    """One request with one to `most` demands."""
    count = rng.randint(1, max(1, min(most, len(KINDS))))
    kinds = rng.sample(sorted(KINDS), count)
    demands = [rng.choice(KINDS[kind])(rng) for kind in kinds]
    opening = rng.choice(FORMS).format(rng.choice(TOPICS))
    return {
        "prompt": " ".join([opening, *(demand.text for demand in demands)]),
        "instruction_id_list": [demand.id for demand in demands],
        "kwargs": [demand.arguments for demand in demands],
    }
