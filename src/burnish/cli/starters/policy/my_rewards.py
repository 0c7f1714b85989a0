"""The rewards: plain functions. Arguments are bound by name.

`text` is the answer, `prompt` the question, `tokens` the answer's length; any other name is a field
of the task, such as `answer`. `burnish try my.toml` shows what they give.
"""

from __future__ import annotations

import re


def correct(text: str, answer: str) -> float | None:
    """1 where the last number of the text is the answer."""
    if not answer:
        return None  # cannot be judged: left out of the statistics, never a zero
    numbers = re.findall(r"-?\d+", text)
    return float(bool(numbers) and numbers[-1] == answer)


def brief(text: str, answer: str) -> float:
    """1 for the bare answer, falling to 0 with every letter around it."""
    return max(0.0, 1.0 - abs(len(text.strip()) - len(answer)) / 20)
