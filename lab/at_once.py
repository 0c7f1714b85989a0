"""Several runs of a study at a time, each in a process of its own: for runs that leave a GPU room."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

from burnish.lm.hardware import GPU_SHARE

T = TypeVar("T")


def at_once(work: Callable[..., T], calls: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """What `work` gives for each call, as they end; with one job in this process, in their order.

    Where one fails beside others, that is said at once and the others are given first.
    """
    if jobs == 1:
        yield from (work(*call) for call in calls)
        return
    # Runs side by side must leave each other room on the GPU.
    os.environ.setdefault(GPU_SHARE, f"{0.95 / jobs:.3f}")
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        begun = [pool.submit(work, *call) for call in calls]
        failed: list[BaseException] = []
        for one in as_completed(begun):
            if (error := one.exception()) is None:
                yield one.result()
            else:
                failed.append(error)
                print(f"a run failed: {error}", flush=True)
    if failed:
        raise failed[0]
