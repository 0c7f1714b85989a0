"""One event loop for a whole run.

`asyncio.run` builds a loop and swaps signal handlers each time, which a tiny model's step notices.
Ctrl-C ends the wait as an ordinary KeyboardInterrupt; `close` then ends what was left running, so
that no worker thread keeps the process alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class EventLoop:
    """Runs coroutines to their end, one after another, on the same loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of `work()`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work())

    def close(self) -> None:
        """Let go of the loop; a later `run` starts another."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
