"""Keeping Python's garbage collector out of the steps.

A run holds hundreds of thousands of objects that live as long as it does (modules, weights, the
compiled model), and each step makes thousands of records. Left alone the collector walks all of
them again and again, a tenth of a second at a time; nothing of that is ever garbage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 50_000
"""Objects made before the collector looks at the young ones; a step of 512 rollouts makes fewer."""


@contextmanager
def calm_collector() -> Iterator[None]:
    """While inside, what is alive now is left alone and new objects are looked at less often.

    Cycles made inside are still found. A program that has tuned its collector itself, by freezing
    or by switching it off, keeps its own way.
    """
    young, *older = gc.get_threshold()
    if not gc.isenabled() or not young or gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(young, YOUNG), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        gc.unfreeze()
