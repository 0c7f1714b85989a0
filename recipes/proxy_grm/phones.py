"""Two phones and a buyer: pairs whose better answer depends on what the buyer needs (Proxy-GRM).

    make(random.Random(1))["prompt"]             # a judge's prompt; "label": 1 or 2
    follow("", "battery 9", "battery 2", "battery 100%")            # 1: by the rubric alone

Each buyer needs one of six attributes. Demonstrations have the right form, but name an attribute at
random: a judge fine-tuned on them knows how a rubric looks and not which one helps.
"""

from __future__ import annotations

import random
import re
from typing import Any

from burnish.tasks.base import check_shares

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


def make(rng: random.Random, skill: float = 0.6) -> dict[str, Any]:
    """One pair; `skill` is the share of demonstrations whose verdict is right."""
    check_shares("phones", skill=skill)
    buyer, need = rng.choice(list(NEEDS.items()))
    marks = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in ATTRIBUTES]
    place = ATTRIBUTES.index(need)
    while marks[place][0] == marks[place][1]:
        marks[place] = (rng.randint(1, 9), rng.randint(1, 9))
    first, second = (
        ", ".join(f"{name} {pair[side]}" for name, pair in zip(ATTRIBUTES, marks, strict=True))
        for side in (0, 1)
    )
    label = 1 if marks[place][0] > marks[place][1] else 2
    question = f"Which phone suits {buyer}?"
    named = rng.choice(ATTRIBUTES)
    said = label if rng.random() < skill else 3 - label
    shown = marks[ATTRIBUTES.index(named)]
    return {
        "prompt": PROMPT.format(question=question, first=first, second=second),
        "question": question,
        "response_1": first,
        "response_2": second,
        "label": label,
        "split_by": f"{question} {first} {second}",
        "demonstration": (
            f"<rubric>{named} 100%</rubric><eval>{shown[0]} and {shown[1]}</eval>"
            f"<answer>{said}</answer>"
        ),
    }


def follow(question: str, first: str, second: str, rubric: str) -> int | None:
    """The response that is ahead in the first attribute that the rubric names; None without one.

    The proxy of the recipe, and what a reader of the rubric would do by hand.
    """
    named = next((word for word in re.findall(r"[a-z]+", rubric) if word in ATTRIBUTES), None)
    if named is None:
        return None
    a, b = (int(re.search(rf"{named} (\d+)", text)[1]) for text in (first, second))  # type: ignore[index]
    return 1 if a > b else 2 if b > a else None
