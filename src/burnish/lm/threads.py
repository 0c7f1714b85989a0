"""How many CPU threads a model of a given size can use."""

from __future__ import annotations

SMALL_MODEL = 5_000_000
"""Below this many weights a matrix product is over before a second thread has woken up."""


def choose_threads(parameters: int, cores: int) -> int:
    """Threads for torch: 1 for small models, else every core up to 16."""
    return 1 if parameters < SMALL_MODEL else max(1, min(cores, 16))
