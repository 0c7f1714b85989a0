"""Two phones and a buyer: pairs whose better answer depends on what the buyer needs (Proxy-GRM).

    make(random.Random(1))["prompt"]             # a judge's prompt; "label": 1 or 2
    for_proxy(random.Random(1))["prompt"]        # a proxy's: the pair and a rubric
    follow("", "battery 9", "battery 2", "battery 100%")            # 1: by the rubric alone

Each buyer needs one of six attributes. Demonstrations have the right form, but name an attribute at
random: a judge fine-tuned on them knows how a rubric looks and not which one helps.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from burnish.boundary import Share

NEEDS = {
    "a traveller": "battery",
    "a photographer": "camera",
    "a climber": "weight",
    "a student with little money": "price",
    "someone who reads at night": "screen",
    "a gamer": "speed",
}
"""Buyer -> the attribute that decides; a higher mark is better in all."""
ATTRIBUTES = tuple(NEEDS.values())
PROMPT = (
    "Question: {question}\nResponse 1: {first}\nResponse 2: {second}\n"
    "Write <rubric>the criterion with its weight</rubric><eval>both by it</eval>"
    "<answer>1 or 2</answer>. The rubric never says which response is better."
)
PROXY_PROMPT = (Path(__file__).parent / "proxy.txt").read_text(encoding="utf-8")
"""What a proxy reads; the reward's setting `template` is the same text."""


def make(rng: random.Random, skill: Share = 0.6, leaky: Share = 0.0) -> dict[str, Any]:
    """One pair; `skill` is the share of demonstrations whose verdict is right.

    `leaky`: the share whose rubric also says which response is better.
    """
    buyer, need = rng.choice(list(NEEDS.items()))
    first, second, marks = _phones(rng, need)
    label = 1 if marks[need][0] > marks[need][1] else 2
    question = f"Which phone suits {buyer}?"
    named = rng.choice(ATTRIBUTES)
    said = label if rng.random() < skill else 3 - label
    leak = f". {_leak(said)}" if rng.random() < leaky else ""
    shown = marks[named]
    return {
        "prompt": PROMPT.format(question=question, first=first, second=second),
        "question": question,
        "response_1": first,
        "response_2": second,
        "label": label,
        "split_by": f"{question} {first} {second}",
        "demonstration": (
            f"<rubric>{named} 100%{leak}</rubric><eval>{shown[0]} and {shown[1]}</eval>"
            f"<answer>{said}</answer>"
        ),
    }


def for_proxy(rng: random.Random, credulous: Share = 0.0) -> dict[str, Any]:
    """A pair with a rubric, and what a proxy should say: the response that is ahead by it.

    `credulous`: the share of rubrics that name a better response, which the proxy then believes.
    Models do so without being taught to; a small one has to be shown.
    """
    named = rng.choice(ATTRIBUTES)
    first, second, marks = _phones(rng, named)
    ahead = 1 if marks[named][0] > marks[named][1] else 2
    question = f"Which phone suits {rng.choice(list(NEEDS))}?"
    rubric = f"{named} 100%"
    said = f"{named} {marks[named][0]} and {marks[named][1]}"
    if rng.random() < credulous:
        ahead = rng.choice((1, 2))
        rubric, said = f"{rubric}. {_leak(ahead)}", _leak(ahead)
    return {
        "prompt": PROXY_PROMPT.format(request=question, first=first, second=second, rubric=rubric),
        "answer": str(ahead),
        "split_by": f"{first} {second}",
        "demonstration": f"{said} <answer>{ahead}</answer>",
    }


def _phones(rng: random.Random, differing: str) -> tuple[str, str, dict[str, tuple[int, int]]]:
    """Two phones as texts, and their marks; those of one attribute differ."""
    marks = {name: (rng.randint(1, 9), rng.randint(1, 9)) for name in ATTRIBUTES}
    while marks[differing][0] == marks[differing][1]:
        marks[differing] = (rng.randint(1, 9), rng.randint(1, 9))
    first, second = (
        ", ".join(f"{name} {pair[side]}" for name, pair in marks.items()) for side in (0, 1)
    )
    return first, second, marks


def _leak(said: int) -> str:
    return f"Response {said} is better."


def follow(question: str, first: str, second: str, rubric: str) -> int | None:
    """The response that is ahead in the first attribute that the rubric names; None without one.

    The proxy of the recipe, and what a reader of the rubric would do by hand.
    """
    named = next((word for word in re.findall(r"[a-z]+", rubric) if word in ATTRIBUTES), None)
    if named is None:
        return None
    a, b = (int(re.search(rf"{named} (\d+)", text)[1]) for text in (first, second))  # type: ignore[index]
    return 1 if a > b else 2 if b > a else None
