"""Sums that a small model cannot do in its head, and demonstrations of one call and its answer."""

from __future__ import annotations

import json
import operator
import random
from typing import Any

from burnish.records import Message
from burnish.rollouts.tool import TaggedForm, Tool

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Compute an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "such as 12 * 34"}},
            "required": ["expression"],
        },
    },
}
"""What the agent offers; a test compares the two."""


def make(rng: random.Random) -> dict[str, Any]:
    """One question."""
    expression, answer = _sum(rng)
    return {"prompt": f"What is {expression}?", "answer": answer}


def demonstrate(rng: random.Random) -> dict[str, Any]:
    """One turn of a solution: the call, or the answer behind its result."""
    expression, answer = _sum(rng)
    form = TaggedForm([Tool.offered(SCHEMA)])
    arguments = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
    call = f"<tool_call>{arguments}</tool_call>"
    messages = form.opening([Message("user", f"What is {expression}?")])
    demonstration = call
    if rng.random() < 0.5:
        told = form.results([Message("tool", answer, name="calculate")])
        messages = [*messages, Message("assistant", call), *told]
        demonstration = f"The answer is {answer}."
    plain = [{"role": message.role, "content": message.content} for message in messages]
    return {"messages": plain, "demonstration": demonstration, "answer": answer}


def _sum(rng: random.Random) -> tuple[str, str]:
    first, second = (rng.randrange(100, 1000) for _ in range(2))
    sign = rng.choice("+-*")
    return f"{first} {sign} {second}", str(OPERATIONS[sign](first, second))
