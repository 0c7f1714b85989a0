"""Word problems that can be solved soundly or by a shortcut that is often right.

    make(random.Random(1))["demonstration"]     # "7+5=12\\n12-3=9\\n9+3=12\\nanswer: 12"

Somebody has two piles, gives some away and gets some back. The sound way writes what is left in
between; the shortcut adds the piles and ignores the exchange, which is right exactly where as many
come back as went. Both are paid alike by a check of the last number, so only a method that looks
at how an answer was found can prefer the sound way (CLIPO, arXiv 2603.10101).

`is_sound` and `steps_right` are meant for weight 0: curves that the policy is not paid for. Whether the answer is right is the
business of `kind = "numeric"`.
"""

from __future__ import annotations

import random
import re
from typing import Any, NamedTuple

from burnish.boundary import Share

NAMES = ("Mia", "Tom", "Ana", "Ben", "Eva", "Leo", "Ida", "Max", "Zoe", "Sam")
THINGS = (
    ("red", "blue", "pens"),
    ("green", "red", "apples"),
    ("big", "small", "shells"),
    ("black", "white", "buttons"),
    ("old", "new", "coins"),
    ("round", "square", "beads"),
    ("long", "short", "ropes"),
    ("plain", "striped", "socks"),
)
EXCHANGES = (
    "gives {given} away and gets {returned} new ones",
    "loses {given} and finds {returned} others",
    "sells {given} and buys {returned} more",
    "lends out {given} and is handed {returned}",
)
INSTRUCTION = "Write the steps, one a line, then a line 'answer:' with the number."


class Problem(NamedTuple):
    """The numbers of one word problem."""

    first: int
    second: int
    given: int
    returned: int

    @property
    def total(self) -> int:
        """Before the exchange; the shortcut's answer."""
        return self.first + self.second

    @property
    def left(self) -> int:
        """The value that the sound way has to write."""
        return self.total - self.given

    @property
    def answer(self) -> int:
        return self.left + self.returned


def make(rng: random.Random, shortcut_right: Share = 0.6, sound: Share = 0.5) -> dict[str, Any]:
    """One problem.

    `shortcut_right` is the share of problems that the shortcut solves; 0.0 is the perturbed split
    on which it always fails. `sound` is the share of sound demonstrations; a shortcut demonstration
    is shown whether it is right or not, so that the way does not depend on the problem.
    """
    problem = _problem(rng, rng.random() < shortcut_right)
    first_sort, second_sort, things = rng.choice(THINGS)
    name = rng.choice(NAMES)
    exchange = rng.choice(EXCHANGES).format(given=problem.given, returned=problem.returned)
    is_sound = rng.random() < sound
    return {
        "prompt": (
            f"{name} has {problem.first} {first_sort} and {problem.second} {second_sort} {things}. "
            f"{name} {exchange}. How many {things} does {name} have now? {INSTRUCTION}"
        ),
        # Other names and things do not make another problem: the numbers decide the side.
        "split_by": f"{sorted(problem[:2])} - {problem.given} + {problem.returned}",
        "answer": str(problem.answer),
        "total": problem.total,
        "given": problem.given,
        "returned": problem.returned,
        "left": problem.left,
        "shortcut_answer": str(problem.total),
        "shortcut_right": problem.total == problem.answer,
        "demonstration": sound_solution(problem) if is_sound else shortcut_solution(problem),
        "demonstration_sound": is_sound,
    }


def sound_solution(problem: Problem) -> str:
    """Every step, with what is left after giving."""
    return (
        f"{_sum(problem)}\n{problem.total}-{problem.given}={problem.left}\n"
        f"{problem.left}+{problem.returned}={problem.answer}\nanswer: {problem.answer}"
    )


def shortcut_solution(problem: Problem) -> str:
    """The two piles alone."""
    return f"{_sum(problem)}\nanswer: {problem.total}"


def _sum(problem: Problem) -> str:
    return f"{problem.first}+{problem.second}={problem.total}"


def _problem(rng: random.Random, shortcut_right: bool) -> Problem:
    first, second = rng.randint(2, 9), rng.randint(2, 9)
    given = rng.randint(1, min(9, first + second - 1))
    others = [number for number in range(1, 10) if number != given]
    return Problem(first, second, given, given if shortcut_right else rng.choice(others))


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
