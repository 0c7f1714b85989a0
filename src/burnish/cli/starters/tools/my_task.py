"""The tool, questions that need it, and demonstrations of its use."""

from __future__ import annotations

import json
import random
from typing import Any

from burnish.records import Message
from burnish.rollouts.tool import TaggedForm, Tool

PRICES = {"apple": 3, "bread": 7, "cheese": 12, "honey": 15, "lemon": 4, "melon": 9, "olive": 6}


def look_up(item: str) -> str:
    """Look up the price of an item in cents.

    Args:
        item: what is sold, such as apple
    """
    # The model reads the docstring and the types. What is raised is shown to it as the result.
    name = item.strip().lower()
    if name not in PRICES:
        raise ValueError(f"nothing called {name!r} is sold here")
    return str(PRICES[name])


def make(rng: random.Random) -> dict[str, Any]:
    """One question. `prompt` is what the model sees; every other key is a field for rewards."""
    item = rng.choice(sorted(PRICES))
    count = rng.randint(1, 9)
    return {"prompt": _ask(item, count), "answer": str(count * PRICES[item])}


def demonstrate(rng: random.Random) -> dict[str, Any]:
    """One turn of a solution with everything before it: the call, or the answer behind it."""
    item = rng.choice(sorted(PRICES))
    count = rng.randint(1, 9)
    form = TaggedForm([Tool(look_up)])
    call = json.dumps({"name": "look_up", "arguments": {"item": item}})
    demonstration = f"<tool_call>{call}</tool_call>"
    messages = form.opening([Message("user", _ask(item, count))])
    if rng.random() < 0.5:
        result = form.results([Message("tool", look_up(item), name="look_up")])
        messages = [*messages, Message("assistant", demonstration), *result]
        demonstration = f"The answer is {count * PRICES[item]}."
    plain = [{"role": message.role, "content": message.content} for message in messages]
    return {"messages": plain, "demonstration": demonstration}


def _ask(item: str, count: int) -> str:
    return f"How many cents do {count} pieces of {item} cost?"
