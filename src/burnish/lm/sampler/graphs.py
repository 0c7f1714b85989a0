"""Decode steps as captured CUDA graphs, one for each number of rows and kind of draw.

A step of a small model is some three hundred short kernels; started one by one from Python they
take several times as long to start as to run. A graph starts them all at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from burnish.lm.sampler.seats import Seats, Variant
from burnish.lm.sampler.step import Stepper

BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Numbers of rows that have a graph; a batch runs in the smallest that holds it."""


def bucket(rows: int) -> int:
    """The smallest bucket that holds this many rows."""
    return next(size for size in BUCKETS if size >= rows)


class Graphs:
    """Captures a step when its bucket is first asked for, and replays it ever after."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._graphs: dict[tuple[int, Variant], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def decode(self, rows: int, variant: Variant) -> None:
        """One step over the first `rows` seats; `rows` is a bucket."""
        key = (rows, variant)
        if key not in self._graphs:
            self._graphs[key] = self._capture(lambda: self._stepper.decode(rows, variant))
        self._graphs[key].replay()

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # A first run outside the graph compiles kernels and opens libraries; it must not count.
        kept = _keep(self._stepper.seats)
        work()
        _restore(self._stepper.seats, kept)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph


def _keep(seats: Seats) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in seats.written]


def _restore(seats: Seats, kept: list[torch.Tensor]) -> None:
    for tensor, value in zip(seats.written, kept, strict=True):
        tensor.copy_(value)
