"""How many CPU threads a model of a given size can use."""

from __future__ import annotations

SMALL_MODEL = 500_000
"""Below this many weights one thread is chosen; a judgement, not a measured crossing.

Repeated timings on two cores that other work shared put models of 0.8 M weights and more ahead on
two threads whenever the second core was free (1.2 to 2 times), and left 115 k weights undecided.
Where the second core was taken, two threads were up to ten times slower than one at every size
below 10 M, so a small model gives up little by staying on one.
"""


def choose_threads(parameters: int, cores: int) -> int:
    """Threads for torch: 1 for small models, else every core up to 16."""
    return 1 if parameters < SMALL_MODEL else max(1, min(cores, 16))
