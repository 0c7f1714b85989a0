"""A text game: find a hidden number with the hints "higher" and "lower"."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from burnish.records import Message, Task
from burnish.rollouts.env import Observation
from burnish.rollouts.tool import Tool


class NumberGame:
    """One game. `won` is 1 where the number was found, `near` how close the last guess came."""

    tools: Sequence[Tool] = ()

    def __init__(self, guesses: int = 4) -> None:
        self.guesses = guesses

    async def reset(self, task: Task, seed: int) -> Observation:
        self.number, self.largest = int(task.fields["number"]), int(task.fields["largest"])
        self.left, self.best = self.guesses, 0.0
        return Observation()

    async def step(self, reply: Message) -> Observation:
        self.left -= 1
        found = re.findall(r"\d{1,9}", reply.content)
        guess = int(found[-1]) if found else None
        if guess == self.number:
            return Observation(done=True, rewards={"won": 1.0, "near": 1.0 - self.best})
        gain = 0.0
        if guess is not None:
            near = max(0.0, 1 - abs(guess - self.number) / self.largest)
            gain = max(0.0, near - self.best)
            self.best += gain
        hint = (
            "Write a number." if guess is None else "Higher." if guess < self.number else "Lower."
        )
        rewards = {"won": 0.0, "near": gain}
        return Observation((Message("user", hint),), done=self.left == 0, rewards=rewards)


def make(rng: random.Random, largest: int = 20) -> dict[str, Any]:
    """A hidden number."""
    prompt = (
        f"I think of a whole number from 1 to {largest}. Guess it: reply with a number only. "
        "I answer Higher or Lower."
    )
    number = rng.randint(1, largest)
    return {"prompt": prompt, "number": number, "largest": largest, "split_by": str(number)}
