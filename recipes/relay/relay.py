"""Two roles of one model: a writer hides a number in words, a reader finds it again.

`burnish train relay` trains both at once, each in a baseline group of its own. The writer must use no
digits, the reader sees only what the writer wrote.
"""

from __future__ import annotations

import random
import re
from typing import Any

from burnish.records import Message, Task
from burnish.rollouts.base import Players


async def play(task: Task, players: Players, seed: int) -> dict[str, dict[str, Any]]:
    """One relay; both roles win where the number arrives without digits on the way."""
    writer = players.session(task.messages, role="writer")
    words = (await players.generate(writer)).content
    asked = f'Which number is meant? Reply with digits only.\n"{words[:200]}"'
    reader = players.session([Message("user", asked)], role="reader")
    read = re.findall(r"\d+", (await players.generate(reader)).content)
    is_hidden = bool(words.strip()) and not re.search(r"\d", words)
    arrived = bool(read) and read[-1] == task.fields["answer"]
    won = {"won": float(arrived and is_hidden)}
    return {
        "writer": {"rewards": {**won, "hidden": float(is_hidden)}},
        "reader": {"rewards": {**won, "hidden": 0.0}},
    }


def make(rng: random.Random, largest: int = 99) -> dict[str, Any]:
    """A number to send."""
    number = rng.randint(1, largest)
    prompt = f"Write the number {number} in words, without any digits."
    return {"prompt": prompt, "answer": str(number)}
