"""Await many calls at once: bounded, results in order, and one bare error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], *, limit: int = 64) -> list[T]:
    """Await calls concurrently, results in order; the first call's error is raised as it is.

    Task groups wrap errors in groups of errors; a one-line message must reach the user bare. An
    error ends only the calls after its own, so which one is raised is not a matter of timing.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}
    errors: dict[int, Exception] = {}
    running: dict[int, anyio.CancelScope] = {}
    waiting = iter(range(len(calls)))

    async def work() -> None:
        """Take one call after another; they are taken in order, so after an error none is due."""
        for index in waiting:
            if errors:
                return
            with anyio.CancelScope() as running[index]:
                # Calls that never wait must not keep deadlines and Ctrl-C from being noticed.
                await anyio.lowlevel.checkpoint()
                try:
                    results[index] = await calls[index]()
                except Exception as error:  # boundary: carried out of the task group unwrapped
                    errors[index] = error
                    for later in [i for i in running if i > index]:
                        running[later].cancel()
            del running[index]

    async with anyio.create_task_group() as group:
        for _ in range(min(max(1, limit), len(calls))):
            group.start_soon(work)
    if errors:
        raise errors[min(errors)]
    return [results[index] for index in range(len(calls))]
