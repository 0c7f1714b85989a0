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

A judgement. `benchmarks/threads.py` on two cores that other work shared, this one ahead of it in the
queue, 115 k weights: the gain of two threads over one was 0.76 to 0.9 with 16 rows, 0.96 to 1.08
with 64 (the backward pass 1.25, decoding below 1) and 1.02 to 1.31 with 256; a machine of its own
has shown 1.22 with 64. Where the other core is taken two threads are slower at every size, by half
and more; `model.threads=1` is for that.
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
