"""Two descriptions of a picture and a reader: pairs that only a judge who sees can decide (Proxy-GRM).

    make(random.Random(1))["images"]             # the bytes of a small picture; "label": 1 or 2
    look(picture_bytes)                          # {"count": "3", "colour": "red", ...}, from the pixels
    follow(question, first, second, "<rubric>colour 100%</rubric>", pictures)     # 1, 2 or None

A picture holds some equal objects on a ground: their count, colour, shape and the ground's colour are what
a description tells, right in some and wrong in others. Each reader needs one of the four. As in `phones.py`
demonstrations have the right form and name a criterion at random. `follow` is a proxy by code that looks at
the picture itself: it takes the description that is right by the criterion that a rubric names.
"""

from __future__ import annotations

import io
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from burnish.boundary import Share

COLOURS = {
    "red": (200, 30, 30), "blue": (30, 60, 200), "green": (30, 150, 60), "yellow": (240, 210, 40),
    "white": (255, 255, 255), "black": (0, 0, 0),
}  # fmt: skip
SHAPES = ("square", "circle", "triangle")
VALUES = {
    "count": tuple(str(number) for number in range(1, 10)),
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "ground": tuple(COLOURS),
}
"""Criterion -> what a description may say of it."""
NEEDS = {
    "someone who counts stock": "count",
    "a painter of signs": "colour",
    "someone who cuts forms": "shape",
    "a printer of paper": "ground",
}
"""Reader -> the criterion that decides."""
CELL, SIDE = 32, 3
"""Pixels of a cell, cells of a side."""
PROMPT = (
    "Question: {question}\nResponse 1: {first}\nResponse 2: {second}\n"
    "Look at the picture. Write <rubric>the criterion with its weight</rubric><eval>both by it</eval>"
    "<answer>1 or 2</answer>. The rubric never says which response is better."
)


def make(rng: random.Random, skill: Share = 0.6, leaky: Share = 0.0) -> dict[str, Any]:
    """One pair over a picture; `skill` is the share of demonstrations whose verdict is right.

    `leaky`: the share whose rubric also says which response is better.
    """
    truth = _scene(rng)
    reader, need = rng.choice(list(NEEDS.items()))
    label = rng.choice((1, 2))
    sides = _descriptions(rng, truth, need, label)
    first, second = (", ".join(f"{name} {side[name]}" for name in VALUES) for side in sides)
    question = f"Which description suits {reader}?"
    named = rng.choice(tuple(VALUES))
    said = label if rng.random() < skill else 3 - label
    leak = f". Response {said} is better." if rng.random() < leaky else ""
    return {
        "prompt": PROMPT.format(question=question, first=first, second=second),
        "images": [draw(truth, rng)],
        "question": question,
        "response_1": first,
        "response_2": second,
        "label": label,
        "split_by": f"{question} {first} {second} {truth}",
        "demonstration": (
            f"<rubric>{named} 100%{leak}</rubric><eval>{sides[0][named]} and {sides[1][named]}</eval>"
            f"<answer>{said}</answer>"
        ),
    }


def _scene(rng: random.Random) -> dict[str, str]:
    found = {name: rng.choice(values) for name, values in VALUES.items()}
    while found["ground"] == found["colour"]:
        found["ground"] = rng.choice(VALUES["ground"])
    return found


def _descriptions(
    rng: random.Random, truth: dict[str, str], need: str, label: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Two descriptions; by what is needed the labelled one alone is right."""
    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for name, values in VALUES.items():
        wrong = [value for value in values if value != truth[name]]
        for place, side in enumerate(sides):
            is_right = place + 1 == label if name == need else rng.random() < 0.5
            side[name] = truth[name] if is_right else rng.choice(wrong)
    return sides


def draw(scene: dict[str, str], rng: random.Random) -> bytes:
    """A picture of a scene: equal objects in some cells of a grid; hard edges, so that code can look."""
    from PIL import Image, ImageDraw

    side = CELL * SIDE
    image = Image.new("RGB", (side, side), COLOURS[scene["ground"]])
    pen, colour = ImageDraw.Draw(image), COLOURS[scene["colour"]]
    for cell in rng.sample(range(SIDE * SIDE), int(scene["count"])):
        x, y = CELL * (cell % SIDE), CELL * (cell // SIDE)
        box = (x + 4, y + 4, x + CELL - 5, y + CELL - 5)
        if scene["shape"] == "square":
            pen.rectangle(box, colour)
        elif scene["shape"] == "circle":
            pen.ellipse(box, colour)
        else:
            pen.polygon(
                [(x + CELL // 2, y + 4), (x + 4, y + CELL - 5), (x + CELL - 5, y + CELL - 5)],
                colour,
            )
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def look(picture: bytes) -> dict[str, str]:
    """What is in a picture of `draw`, read off its pixels.

    >>> look(draw({"count": "2", "colour": "red", "shape": "circle", "ground": "blue"}, random.Random(1)))
    {'count': '2', 'colour': 'red', 'shape': 'circle', 'ground': 'blue'}
    """
    from burnish.media.images import open_image

    image = open_image(picture)
    names = {colour: name for name, colour in COLOURS.items()}
    ground = image.getpixel((0, 0))
    cells = [(CELL * (n % SIDE), CELL * (n // SIDE)) for n in range(SIDE * SIDE)]
    middle = CELL // 2
    held = [(x, y) for x, y in cells if image.getpixel((x + middle, y + middle)) != ground]
    if not held:
        return {"count": "0", "colour": "", "shape": "", "ground": names.get(ground, "")}
    x, y = held[0]
    top = image.getpixel((x + 6, y + 6)) != ground
    bottom = image.getpixel((x + 6, y + CELL - 7)) != ground
    colour = Counter(image.getpixel((x + middle, y + middle)) for x, y in held).most_common(1)[0][0]
    return {
        "count": str(len(held)),
        "colour": names.get(colour, ""),
        "shape": "square" if top else "triangle" if bottom else "circle",
        "ground": names.get(ground, ""),
    }


def follow(
    question: str, first: str, second: str, rubric: str, pictures: Sequence[Any] = ()
) -> int | None:
    """The description that is right by the first criterion that a rubric names; None for none or both."""
    from burnish.store.blobs import shared_blobs

    named = next((word for word in re.findall(r"[a-z]+", rubric) if word in VALUES), None)
    if named is None or not pictures:
        return None
    truth = look(shared_blobs().read(pictures[0]))[named]
    right = [f"{named} {truth}" in text.split(", ") for text in (first, second)]
    return None if right[0] == right[1] else 1 if right[0] else 2
