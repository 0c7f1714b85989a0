"""How many CPU threads a model of a given size can use.

The count follows from model, batch and machine alone, never from a timing: another count adds in
another order and gives other bits, so a choice that depended on the load of the machine would make
two runs of one config differ.
"""

from __future__ import annotations

import os

SMALL_MODEL = 500_000
"""From this many weights on every core is used: 1.2 to 2 times as fast on two cores from 0.8 M on,
even with few rows."""
SMALL_STEP = 6_000_000
"""A smaller model uses every core where weights x rows decoded at once reach this.

`benchmarks/threads.py`, 115 k weights, two cores: two threads take 1.3 times as long as one with 16
rows, about as long or a little less with 64, and 0.77 times as long with 256. These are low
quantiles of each part of a step, as a machine without other work has them. Where the other core is
taken two threads are slower at every size, up to ten times; `model.threads=1` is for that.
"""


def choose_threads(parameters: int, cores: int, rows: int = 1) -> int:
    """Threads for torch: 1 for small models with few rows at once, else every core up to 16."""
    if parameters < SMALL_MODEL and parameters * rows < SMALL_STEP:
        return 1
    return max(1, min(cores, 16))


def usable_cores() -> int:
    """Cores that this process may use, at most `OMP_NUM_THREADS` where that is set."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(told)) if told.isdecimal() and int(told) > 0 else cores
