"""An agent as anyone would write it for a chat server: it offers a calculator and runs its calls.

It knows nothing of training. The address, the key and the task come from outside:

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python agent.py < task.json
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
import urllib.request
from typing import Any

CALCULATOR = {
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
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MOST_TURNS = 4


def calculate(expression: str) -> str:
    """Two whole numbers and + - or *: an expression from a model is data, never code."""
    found = re.fullmatch(r"\s*(-?\d{1,9})\s*([+*-])\s*(-?\d{1,9})\s*", expression)
    if found is None:
        return "Error: expected two whole numbers and + - or *"
    return str(OPERATIONS[found[2]](int(found[1]), int(found[3])))


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    model = os.environ.get("OPENAI_MODEL", "any")
    body = json.dumps({"model": model, "messages": messages, "tools": [CALCULATOR]}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        body,
        {
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        },
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        found: dict[str, Any] = json.load(reply)["choices"][0]["message"]
    return found


def main() -> None:
    """Answer the task on stdin; the answer is the last line."""
    messages = json.load(sys.stdin)["messages"]
    for _ in range(MOST_TURNS):
        reply = ask(messages)
        messages.append(reply)
        calls = reply.get("tool_calls") or []
        if not calls:
            break
        for call in calls:
            given = json.loads(call["function"]["arguments"])
            result = calculate(str(given.get("expression", "")))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    sys.stdout.write(" ".join((messages[-1].get("content") or "").split()) + "\n")


if __name__ == "__main__":
    main()
