"""A Python tool: what the model writes runs in the sandbox, and it reads what was printed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from burnish.tools import RunStatus, Sandbox, SandboxLimits


@cache
def _sandbox() -> Sandbox:
    return Sandbox(SandboxLimits(cpu_s=2, wall_s=5))


async def python(code: str) -> str:
    """Run a Python program and return what it prints.

    Args:
        code: the program
    """
    ran = await _sandbox().arun(code)
    if ran.status is RunStatus.OK:
        return ran.stdout.strip() or "(it printed nothing; use print)"
    last = ran.stderr.strip().splitlines()[-1:] or [ran.status.value]
    raise RuntimeError(f"the program failed: {last[0]}")


def make(rng: random.Random) -> dict[str, Any]:
    """A question that a short program answers."""
    low, high = sorted(rng.sample(range(2, 60), 2))
    kind = rng.choice(("squares", "divisors", "digits"))
    if kind == "squares":
        prompt = f"What is the sum of the squares of the whole numbers from {low} to {high}?"
        answer = sum(n * n for n in range(low, high + 1))
    elif kind == "divisors":
        number = low * high
        prompt = f"How many whole numbers divide {number} without a remainder?"
        answer = sum(number % n == 0 for n in range(1, number + 1))
    else:
        prompt = f"What is the sum of the digits of {low} to the power of {high}?"
        answer = sum(map(int, str(low**high)))
    return {"prompt": prompt, "answer": str(answer)}
