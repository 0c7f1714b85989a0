"""How long a grade takes: one token against the full text, for several models in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from burnish.lm.base import Sampling
from burnish.lm.local import LocalLM
from burnish.records import Task

WARM_UP = 2
"""Rounds that are not counted: caches are built, and graphs captured on a GPU."""


class Timed(NamedTuple):
    """One way of asking."""

    ms_per_query: float
    """Median over rounds of a batch's time, divided by its size."""
    tokens: float
    """Mean length of the answers."""


def latencies(
    models: Mapping[str, LocalLM],
    tasks: Sequence[Task],
    *,
    batches: Sequence[int],
    max_tokens: int,
    rounds: int,
) -> dict[tuple[str, int, str], Timed]:
    """By model, batch and `one` or `full`.

    The models take turns in every round and all answer the same prompts, other ones each round, so
    that neither a cache nor a busy machine favours one of them.
    """
    ways = {"one": 1, "full": max_tokens}
    seconds: dict[tuple[str, int, str], list[float]] = {}
    lengths: dict[tuple[str, int, str], list[int]] = {}
    for batch in batches:
        for turn in range(WARM_UP + rounds):
            asked = [tasks[(turn * batch + i) % len(tasks)] for i in range(batch)]
            for way, budget in ways.items():
                sampling = Sampling(temperature=0.0, max_tokens=budget)
                for name, lm in models.items():
                    began = time.perf_counter()
                    requests = [lm.request(task.messages, sampling) for task in asked]
                    answers = lm.sample_batch(requests)
                    spent = time.perf_counter() - began
                    if turn >= WARM_UP:
                        key = (name, batch, way)
                        seconds.setdefault(key, []).append(spent / batch)
                        lengths.setdefault(key, []).extend(len(a[0].token_ids) for a in answers)
    return {
        key: Timed(1000 * statistics.median(values), statistics.fmean(lengths[key]))
        for key, values in seconds.items()
    }
