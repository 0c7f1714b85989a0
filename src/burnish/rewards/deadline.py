"""Calling a foreign function many times, each call with a wall clock, from an ordinary thread.

A Python thread cannot be killed. A call past its deadline is left behind in its own daemon thread,
which holds up neither the next call nor the end of the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from burnish.errors import RewardError, UserError
from burnish.records import Status
from burnish.rewards.scorer import describe


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
    calls: list[Call] = []
    cancelled = cancelled or threading.Event()
    while len(calls) < len(arguments) and not cancelled.is_set():
        results: queue.SimpleQueue[Call | Exception] = queue.SimpleQueue()
        rest = arguments[len(calls) :]
        left_behind = threading.Event()
        threading.Thread(
            target=_work, args=(function, rest, results, (left_behind, cancelled)), daemon=True
        ).start()
        for _ in rest:
            try:
                call = results.get(timeout=deadline_s)
            except queue.Empty:
                left_behind.set()
                late = f"no answer within {deadline_s:g} s"
                calls.append(Call(failure=(Status.TIMEOUT, late)))
                break
            if isinstance(call, Exception):
                raise call
            calls.append(call)
            if cancelled.is_set():
                break
    return calls


def _work(
    function: Callable[..., Any],
    arguments: Sequence[Mapping[str, Any]],
    results: queue.SimpleQueue[Call | Exception],
    ends: Sequence[threading.Event],
) -> None:
    for one in arguments:
        try:
            results.put(Call(function(**one)))
        except (UserError, RewardError) as error:
            results.put(error)
            return
        except (Exception, SystemExit) as error:  # boundary: a reward function is foreign code
            results.put(Call(failure=(Status.INFRA_ERROR, describe(error))))
        if any(end.is_set() for end in ends):
            return
