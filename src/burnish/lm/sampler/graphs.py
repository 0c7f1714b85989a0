"""Decode steps as captured CUDA graphs, one for each number of rows and kind of draw.

A step of a small model is some three hundred short kernels; started one by one from Python they
take several times as long to start as to run. A graph starts them all at once.
"""

from __future__ import annotations

import torch

from burnish.lm.sampler.seats import Variant
from burnish.lm.sampler.step import Stepper

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Numbers of rows that have a graph; a batch runs in the smallest that holds it."""


def bucket(rows: int) -> int:
    """The smallest bucket that holds this many rows."""
    return next(size for size in BUCKETS if size >= rows)


class Graphs:
    """Captures the steps of every bucket when the first of a kind is asked for, and replays them.

    All at once, so that no later call has to wait for one.
    """

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._graphs: dict[tuple[int, Variant], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def decode(self, rows: int, variant: Variant) -> None:
        """One step over the first `rows` seats; `rows` is a bucket."""
        variant = variant.as_drawn_by_kernels()
        if (rows, variant) not in self._graphs:
            # The largest first: the others fit into the memory it leaves in the pool.
            for size in reversed(BUCKETS):
                if size <= self._stepper.seats.count:
                    self._graphs[size, variant] = self._capture(size, variant)
        self._graphs[rows, variant].replay()

    def _capture(self, rows: int, variant: Variant) -> torch.cuda.CUDAGraph:
        seats = self._stepper.seats
        current, side = torch.cuda.current_stream(), self._side
        side.wait_stream(current)
        # By hand: torch's own context collects garbage and empties the allocator's cache first,
        # a tenth of a second for each graph.
        with torch.cuda.stream(side):
            # A first run outside the graph compiles kernels and opens libraries; it must not count.
            kept = [tensor.clone() for tensor in seats.written]
            self._stepper.decode(rows, variant)
            for tensor, value in zip(seats.written, kept, strict=True):
                tensor.copy_(value)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._stepper.decode(rows, variant)
            finally:
                graph.capture_end()
        current.wait_stream(side)
        return graph
