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
        self._task: asyncio.Task[Any] | None = None
        self._asked = threading.Event()
        """Someone wants the run to stop."""
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered before each coroutine and left when it has ended, however it did."""

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of `work()`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._asked.is_set():
            raise KeyboardInterrupt
        task = self._loop.create_task(work())
        self._task = task
        try:
            with self.around(), _interruptible(self._loop, task, self._asked):
                result: Result = self._loop.run_until_complete(task)
                return result
        finally:
            self._task = None

    def running(self) -> asyncio.AbstractEventLoop | None:
        """The loop while a coroutine runs on it; None otherwise."""
        return self._loop if self._task is not None else None

    def interrupt(self) -> None:
        """From another thread: what is running ends as Ctrl-C would end it."""
        loop, task = self._loop, self._task
        self._asked.set()
        if loop is not None and task is not None:
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Let go of the loop; a later `run` starts another."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


@contextmanager
def _interruptible(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], asked: threading.Event
) -> Iterator[None]:
    """While inside, Ctrl-C cancels the task; a task that `asked` ended leaves as KeyboardInterrupt."""
    is_main = threading.current_thread() is threading.main_thread()

    def interrupt() -> None:
        asked.set()
        task.cancel()

    if is_main:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        if is_main:
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
