"""Which way an answer to `burnish.tasks.examples.two_ways` took, and whether its steps hold.

Meant for weight 0: curves that the policy is not paid for. Whether the answer is right is the
business of `kind = "numeric"`.
"""

from __future__ import annotations

import re

_STEP = re.compile(r"(?<![\d+-])(\d{1,6})([+-])(\d{1,6})=(-?\d{1,7})(?![\d+=-])")


def is_sound(text: str, given: int, returned: int) -> float:
    """1.0 where the answer subtracts what was given and, from that, adds what came back.

    A slip of arithmetic does not make the way another one: see `steps_right`.
    """
    left: str | None = None
    for start, operator, operand, result in _steps(text):
        if operator == "-" and int(operand) == given:
            left = result
        elif operator == "+" and int(operand) == returned and start == left:
            return 1.0
    return 0.0


def steps_right(text: str) -> float:
    """1.0 where the answer writes at least one step and every step it writes is true."""
    steps = _steps(text)
    return float(bool(steps) and all(_is_true(*step) for step in steps))


def _steps(text: str) -> list[tuple[str, str, str, str]]:
    return [step for line in text.splitlines() for step in _STEP.findall(line.replace(" ", ""))]


def _is_true(left: str, operator: str, right: str, result: str) -> bool:
    value = int(left) + int(right) if operator == "+" else int(left) - int(right)
    return value == int(result)
