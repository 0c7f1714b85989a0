"""One event loop for a whole run.

`asyncio.run` builds a loop and swaps signal handlers each time; for a tiny model that costs as much
as a tenth of a step. Ctrl-C still ends the wait, as an ordinary KeyboardInterrupt.
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
        if self._loop is not None:
            self._loop.close()
            self._loop = None
