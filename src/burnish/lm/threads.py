"""How many CPU threads a model of a given size can use."""

from __future__ import annotations

SMALL_MODEL = 500_000
"""Below this many weights a matrix product is over before a second thread has woken up.

Measured on two cores, 32 rows, one against two threads: 115 k weights sample equally fast and
train a third slower on two; 820 k weights sample 1.2 and train 1.7 times as fast; 3 M weights 1.4
and 1.9 times.
"""


def choose_threads(parameters: int, cores: int) -> int:
    """Threads for torch: 1 for small models, else every core up to 16."""
    return 1 if parameters < SMALL_MODEL else max(1, min(cores, 16))
