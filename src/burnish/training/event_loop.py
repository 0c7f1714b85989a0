"""One event loop for a whole run.

`asyncio.run` builds a loop each time, which a tiny model's step notices. Ctrl-C cancels what is
running, waits for the batch that a worker thread is sampling, and comes out as an ordinary
KeyboardInterrupt, so that no thread keeps the process alive.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

Result = TypeVar("Result")


class EventLoop:
    """Runs coroutines to their end, one after another, on the same loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered before each coroutine and left when it has ended, however it did."""

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of `work()`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(work())
        with self.around(), _interruptible(self._loop, task):
            return self._loop.run_until_complete(task)

    def close(self) -> None:
        """Let go of the loop; a later `run` starts another."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


@contextmanager
def _interruptible(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Iterator[None]:
    """While inside, Ctrl-C cancels the task; it leaves as KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = threading.Event()

    def interrupt() -> None:
        asked.set()
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)


YOUNG = 50_000
"""Objects made before the collector looks at the young ones; a step of 512 rollouts makes fewer."""

FROZEN_BY_PYTHON = 1000
"""Python 3.12 starts with a few hundred frozen objects; more were frozen by the program."""


@contextmanager
def calm_collector() -> Iterator[None]:
    """While inside, what is alive now is left alone and new objects are looked at less often.

    Cycles made inside are still found. A program that has switched its collector off keeps it so;
    what one has frozen stays frozen.
    """
    young, *older = gc.get_threshold()
    if not gc.isenabled() or not young:
        yield
        return
    is_frozen = gc.get_freeze_count() > FROZEN_BY_PYTHON
    if not is_frozen:
        gc.collect()
        gc.freeze()
    gc.set_threshold(max(young, YOUNG), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        if not is_frozen:
            gc.unfreeze()
