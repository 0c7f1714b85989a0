"""Manuals and recipes in which it is known where a picture is needed, and which tool provides it.

    [task]
    kind = "function"
    path = "manuals.py:make"

A prompt gives the steps of a guide and the images that its document has. The answer repeats the steps, a
line each, and calls a tool behind those that need a picture: an image of the document is cited, a
known place is searched for, a series of numbers is drawn by code, something that does not exist is
generated, an image is marked by an edit. Steps such as "wait ten minutes" need none. The needs are in
the task's field `needs`, so that a plan is scored without a judge.

    python -m recipes.atp.manuals 40 > src/burnish/bench/data/atp_manuals.jsonl     # the set that ships
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from burnish.errors import UserError
from burnish.rewards.judges.atp_bench import render_call
from burnish.seeds import derive

PARTS = (
    "axle", "blade", "bolt", "bracket", "cable", "chain", "clamp", "clip", "cover", "fan", "filter",
    "fuse", "gasket", "gear", "hinge", "hose", "lamp", "latch", "lever", "motor", "nozzle", "pedal",
    "pump", "screw", "seal", "spring", "switch", "tank", "valve", "wheel",
)  # fmt: skip
DISHES = (
    "beans", "bread", "broth", "cake", "carrots", "cream", "dough", "dumplings", "eggs", "lentils",
    "mushrooms", "noodles", "onions", "pastry", "peppers", "potatoes", "rice", "sauce", "soup", "tomatoes",
)  # fmt: skip
PLACES = (
    "Athens market", "Berlin museum", "Cairo bazaar", "Delhi station", "Lima harbour", "Lisbon tram",
    "Oslo library", "Prague bridge", "Rome forum", "Seoul tower", "Tokyo garden", "Vienna opera",
)  # fmt: skip
DREAMS = (
    "a dragon", "a flying boat", "a glass forest", "a kind robot", "a moon garden", "a paper whale",
    "a singing tree", "a tiny castle",
)  # fmt: skip
SERIES = ("cost", "heat", "noise", "power", "price", "speed", "weight", "yield")
PLAIN = (
    "Wait {n} minutes.", "Wash your hands.", "Read this page again.", "Take a short break.",
    "Tell a friend about it.", "Repeat this {n} times.", "Write down the date.", "Drink a glass of water.",
)  # fmt: skip
MANUAL, RECIPE = "manual", "recipe"
TOOL_LINE = (
    'Tools: <tool name="NAME">JSON</tool> with reference {"image_id"}, search {"query"}, '
    'diffusion {"prompt"}, code {"code"}, edit {"image_id", "instruction"}.'
)
RULE = "Repeat each step on its own line. Behind a step call a tool where a picture helps the reader; no decoration."


class Step(NamedTuple):
    """One step, and the call that belongs behind it."""

    text: str
    tool: str = ""
    args: Mapping[str, Any] | None = None
    intent: str = ""
    words: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        return render_call(self.tool, self.args or {}) if self.tool else ""


def make(
    rng: Random,
    steps: int = 3,
    need: float = 0.6,
    drop: float = 0.0,
    extra: float = 0.0,
    wrong: float = 0.0,
) -> Mapping[str, Any]:
    """A guide of `steps` steps, each with a need by chance `need`.

    `demonstration` is the whole plan; an example leaves out a call with the chance `drop`, adds one with
    `extra` where none is needed, and takes another tool with `wrong`.
    """
    for name, value in (("need", need), ("drop", drop), ("extra", extra), ("wrong", wrong)):
        if not 0 <= value <= 1:
            raise UserError(f"manuals: {name} = {value}; expected 0 to 1.")
    if not 1 <= steps <= 9:
        raise UserError(f"manuals: steps = {steps}; expected 1 to 9.")
    kind = rng.choice((MANUAL, RECIPE))
    names = rng.sample(PARTS if kind == MANUAL else DISHES, steps + 1)
    images = [f"the {name}" for name in names]
    drawn: list[Step] = []
    while len(drawn) < steps:
        step = _step(rng, names[len(drawn)], len(drawn), need)
        # The same call again would be a repetition, which is wrong.
        if not step.call or step.call not in [one.call for one in drawn]:
            drawn.append(step)
    listed = "\n".join(f"Step {n}: {step.text}" for n, step in enumerate(drawn, start=1))
    shown = ", ".join(f"{n} {caption}" for n, caption in enumerate(images))
    examples = [_spoilt(rng, step, n, drop, extra, wrong) for n, step in enumerate(drawn)]
    return {
        "prompt": f"{TOOL_LINE}\n{RULE}\nImages: {shown}\n{listed}",
        "query": f"Write the {kind} with pictures.",
        "documents": [listed],
        "images": images,
        "needs": [_need(n, step) for n, step in enumerate(drawn, start=1) if step.tool],
        "sections": [f"Step {n}" for n in range(1, steps + 1)],
        "answer": _written(drawn, [step.call for step in drawn]),
        "demonstration": _written(drawn, examples),
        "guide": kind,
        "split_by": listed,
    }


def _step(rng: Random, name: str, image: int, need: float) -> Step:
    if rng.random() >= need:
        return Step(rng.choice(PLAIN).format(n=rng.randint(2, 40)))
    tool = rng.choice(("reference", "search", "diffusion", "code", "edit"))
    if tool == "reference":
        return Step(f"Look at the {name}.", tool, {"image_id": image}, f"show the {name}")
    if tool == "edit":
        args = {"image_id": image, "instruction": f"circle the {name}"}
        return Step(f"Find the circled {name}.", tool, args, f"circle the {name}", (name,))
    if tool == "search":
        place = rng.choice(PLACES)
        return Step(f"Visit the {place}.", tool, {"query": place}, f"show the {place}", (place,))
    if tool == "diffusion":
        dream = rng.choice(DREAMS)
        return Step(f"Imagine {dream}.", tool, {"prompt": dream}, f"paint {dream}", (dream,))
    values = [rng.randint(1, 9) for _ in range(3)]
    shown = ", ".join(map(str, values))
    args = {"code": f"plot([{shown}])"}
    return Step(
        f"Compare the {rng.choice(SERIES)}: {shown}.", tool, args, "draw the series", (shown,)
    )


def _need(number: int, step: Step) -> dict[str, Any]:
    args = {"image_id": step.args["image_id"]} if step.args and "image_id" in step.args else {}
    return {
        "where": f"Step {number}",
        "intent": step.intent,
        "tool": step.tool,
        "args": args,
        "words": list(step.words),
    }


def _spoilt(rng: Random, step: Step, image: int, drop: float, extra: float, wrong: float) -> str:
    """The call of an example, with the mistakes that examples make."""
    chance, other = rng.random(), rng.choice(("search", "diffusion"))
    if not step.tool:
        return render_call("reference", {"image_id": image}) if chance < extra else ""
    if chance < drop:
        return ""
    if rng.random() < wrong:
        words = step.words[0] if step.words else "it"
        return render_call(other, {"query" if other == "search" else "prompt": words})
    return step.call


def _written(steps: list[Step], calls: list[str]) -> str:
    lines = [
        f"Step {n}: {step.text}{' ' if call else ''}{call}"
        for n, (step, call) in enumerate(zip(steps, calls, strict=True), start=1)
    ]
    return "\n".join(lines)


def main() -> int:
    """Write rows as the benchmark reads them."""
    for index in range(int(sys.argv[1])):
        drawn = make(Random(derive("atp manuals", index)), steps=3 + index % 3)
        row = {
            "trace_id": f"{drawn['guide']}-{index}",
            "query": drawn["prompt"],
            "doc": drawn["documents"],
            **{key: drawn[key] for key in ("images", "needs", "sections")},
            "gt": drawn["answer"],
            "category": drawn["guide"],
        }
        sys.stdout.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
