"""Countable facts about a text that a judge's skill may use instead of guessing by eye.

    constraint_tools("Two words.")["words"]         # 2
    count_occurrences("abababa", "aba")             # 2; overlapping=True: 3

The counting itself lives with the checks, so that a check and a judge never count differently.
"""

from __future__ import annotations

from burnish.rewards.checks.numeric import normalize_numeric_answer
from burnish.rewards.checks.texts import constraint_tools, count_occurrences

__all__ = ["constraint_tools", "count_occurrences", "normalize_numeric_answer"]
