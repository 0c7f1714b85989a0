"""One event loop in one background thread, for callers that have none or have their own.

A trainer calls rewards from its main thread, from worker threads and from event loops of its own.
Connections and semaphores belong to one loop, so all work of one process is done on this one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio.to_thread

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

_lock = threading.Lock()
"""Guards `_loops`: one loop for each process, made once."""
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def call(work: Work[T]) -> T:
    """The result of `work()`, awaited on the background loop while this thread waits."""
    future = _start(work)
    try:
        return future.result()
    except BaseException:  # Ctrl-C while this thread waits: the work ends too
        future.cancel()
        raise


async def call_async(work: Work[T]) -> T:
    """The result of `work()` without blocking the caller's loop, whichever library runs it."""
    future = _start(work)
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # another library's loop: wait in a thread
        try:
            return await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True)
        finally:
            future.cancel()
    return await asyncio.wrap_future(future)


def _start(work: Work[T]) -> concurrent.futures.Future[T]:
    loop = _loop()
    if threading.current_thread().name == _name(os.getpid()):
        raise RuntimeError("the background loop waits for itself; await the scorer directly")
    # The caller's context may say that another library is running, or hold its cancel scopes.
    clean = contextvars.Context()
    return clean.run(lambda: asyncio.run_coroutine_threadsafe(work(), loop))


def _loop() -> asyncio.AbstractEventLoop:
    """This process's loop: a forked child has no thread of its parent's, so it starts its own."""
    process = os.getpid()
    with _lock:
        if process not in _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name=_name(process), daemon=True).start()
            _loops[process] = loop
        return _loops[process]


def _name(process: int) -> str:
    return f"burnish-scoring-{process}"


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
