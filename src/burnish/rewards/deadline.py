"""Calling a foreign function many times, each call with a wall clock, from an ordinary thread.

A Python thread cannot be killed. A call past its deadline is left behind in its own daemon thread,
which does not hold up the end of the process. But each such thread takes its share of the
interpreter: when several are still busy, the next call is refused and the run stops with a reason,
rather than crawl.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from burnish.activity import moved
from burnish.errors import RewardError, UserError
from burnish.records import Status
from burnish.source import describe
from burnish.user_code import calling_user_code

LOOK_S = 0.2
"""How often a waiting call looks whether its caller has gone."""

MOST_LEAKED = 4
"""Calls that may still be running after their time; with more, nothing else gets done."""

_leaked_threads: list[threading.Thread] = []


class Call(NamedTuple):
    """What a call returned, or the status and reason of its failure."""

    value: Any = None
    failure: tuple[Status, str] | None = None


def call_each(
    function: Callable[..., Any],
    arguments: Sequence[Mapping[str, Any]],
    deadline_s: float,
    cancelled: threading.Event | None = None,
) -> list[Call]:
    """Call the function with each set of arguments in turn; blocks, keeps the order.

    `UserError` and `RewardError` raised by the function are raised here. Once `cancelled` is set
    no further call is made, and what is returned is of no use to anyone.
    """
    _refuse_to_crawl(function)
    calls: list[Call] = []
    cancelled = cancelled or threading.Event()
    while len(calls) < len(arguments) and not cancelled.is_set():
        results: queue.SimpleQueue[Call | Exception] = queue.SimpleQueue()
        rest = arguments[len(calls) :]
        left_behind = threading.Event()
        thread = threading.Thread(
            target=_work, args=(function, rest, results, (left_behind, cancelled)), daemon=True
        )
        thread.start()
        for _ in rest:
            try:
                call = _wait(results, deadline_s, cancelled)
            except queue.Empty:
                left_behind.set()
                _leaked_threads.append(thread)
                late = f"no answer within {deadline_s:g} s"
                calls.append(Call(failure=(Status.TIMEOUT, late)))
                break
            if isinstance(call, Exception):
                raise call
            calls.append(call)
            moved()
            if cancelled.is_set():
                break
    return calls


def _refuse_to_crawl(function: Callable[..., Any]) -> None:
    _leaked_threads[:] = [thread for thread in _leaked_threads if thread.is_alive()]
    if len(_leaked_threads) >= MOST_LEAKED:
        name = getattr(function, "__name__", "a reward")
        raise RewardError(
            f"{len(_leaked_threads)} calls of reward functions never returned and keep the interpreter "
            f"busy (the next would be '{name}'); expected every call to end. Give the function a "
            "limit of its own."
        )


def _wait(
    results: queue.SimpleQueue[Call | Exception], deadline_s: float, cancelled: threading.Event
) -> Call | Exception:
    """The next result; `queue.Empty` at the deadline, or soon after the caller has gone."""
    ends = time.monotonic() + deadline_s
    while True:
        left = ends - time.monotonic()
        try:
            return results.get(timeout=max(0.0, min(left, LOOK_S)))
        except queue.Empty:
            if left <= LOOK_S or cancelled.is_set():
                raise


def _work(
    function: Callable[..., Any],
    arguments: Sequence[Mapping[str, Any]],
    results: queue.SimpleQueue[Call | Exception],
    ends: Sequence[threading.Event],
) -> None:
    for one in arguments:
        try:
            with calling_user_code():
                value = function(**one)
            results.put(Call(value))
        except (UserError, RewardError) as error:
            results.put(error)
            return
        # Boundary: a reward function is foreign code. Ctrl-C never arrives in this thread, so a
        # KeyboardInterrupt is the function's own, like SystemExit and any other BaseException.
        except BaseException as error:
            results.put(Call(failure=(Status.REWARD_ERROR, describe(error))))
        if any(end.is_set() for end in ends):
            return
