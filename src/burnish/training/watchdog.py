"""Around a run: its event loop, signs of life, a word where it is silent, and last words at its end.

Ctrl-C cancels what is running, waits for the batch that a worker thread is sampling, and comes out as
an ordinary KeyboardInterrupt. A thread writes a sign of life to `RUN/processes/N.json` every few
seconds. After `quiet_s` in which nothing moved (`burnish.activity`) the main process logs what each
process waits for or computes; after twice as long, the stacks of its threads and tasks are written. A
silence that ended by itself is the pace of a slow machine: the next one has to be twice as long.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, TypeVar

from burnish import activity
from burnish.errors import GuardTripped, is_out_of_memory
from burnish.source import describe
from burnish.store.processes import FOLDER, Death, ProcessRecord, deaths, is_alive, read_processes
from burnish.texts import shown_path
from burnish.user_code import tell_before_exit

Result = TypeVar("Result")


WIND_UP_S = 60.0
"""How long coroutines that were begun may take to end when the loop is closed."""


class EventLoop:
    """Runs coroutines to their end, one after another, on the same loop; some may be begun beside."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._driver: threading.Thread | None = None
        """Turns the loop once a coroutine was begun."""
        self._joined: concurrent.futures.Future[Any] | None = None
        """What is run on the loop that the driver turns."""
        self._asked = threading.Event()
        """Someone wants the run to stop."""
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered before each coroutine and left when it has ended, however it did."""

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Ctrl-C cancels it; what was asked to stop leaves as KeyboardInterrupt."""
        if self._asked.is_set():
            raise KeyboardInterrupt
        if self._driver is not None:
            return self._join(work)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        task = self._task = self._loop.create_task(work())
        is_main = threading.current_thread() is threading.main_thread()
        try:
            with self.around():
                if is_main:
                    self._loop.add_signal_handler(signal.SIGINT, self.interrupt)
                try:
                    result: Result = self._loop.run_until_complete(task)
                    return result
                except asyncio.CancelledError:
                    if self._asked.is_set():
                        raise KeyboardInterrupt from None
                    raise
                finally:
                    if is_main:
                        self._loop.remove_signal_handler(signal.SIGINT)
        finally:
            self._task = None

    def begin(
        self, work: Callable[[], Coroutine[Any, Any, Result]]
    ) -> concurrent.futures.Future[Result]:
        """A coroutine that goes on in a thread while this one computes; `run` shares its loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._driver is None:
            self._driver = threading.Thread(
                target=self._loop.run_forever, name="burnish-loop", daemon=True
            )
            self._driver.start()
        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def _join(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        joined = self._joined = self.begin(work)
        try:
            with self.around():
                done: Result = joined.result()
                return done
        except concurrent.futures.CancelledError:
            if self._asked.is_set():
                raise KeyboardInterrupt from None
            raise
        finally:  # also where Ctrl-C ended the wait
            joined.cancel()
            self._joined = None

    def running(self) -> asyncio.AbstractEventLoop | None:
        return self._loop if self._task is not None or self._driver is not None else None

    def interrupt(self) -> None:
        """From another thread: what is running ends as Ctrl-C would end it."""
        loop, task, joined = self._loop, self._task, self._joined
        self._asked.set()
        if joined is not None:
            joined.cancel()
        elif loop is not None and task is not None:
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        loop, self._loop = self._loop, None
        driver, self._driver = self._driver, None
        if loop is not None and driver is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_end_others(), loop).result(WIND_UP_S)
            loop.call_soon_threadsafe(loop.stop)
            driver.join(WIND_UP_S)
        if loop is not None and not loop.is_running():
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


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


BEAT_S = 5.0
BUSY = 0.3
"""Share of a core above which a process that says nothing is computing."""
logger = logging.getLogger(__name__)


class Watchdog:
    """Watches this process from a thread of its own while the run is inside."""

    def __init__(
        self,
        record: ProcessRecord,
        quiet_s: float,
        step: Callable[[], int | None],
        *,
        is_main: bool = True,
        loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None,
    ) -> None:
        """`quiet_s` of 0: it says nothing and only keeps the signs of life."""
        self.record, self.quiet_s, self.step, self.is_main = record, quiet_s, step, is_main
        self.loop = loop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._exits = contextlib.ExitStack()
        self._said_at = 0.0
        """Seconds of silence that were told last."""
        self._has_stacks = False
        self._last = self._longest = 0.0
        """The silence of the last look, and the longest that ended by itself."""
        self._computed = time.process_time()

    def __enter__(self) -> Watchdog:
        def note_exit(status: int) -> None:
            line = f"os._exit({status}) was called{_caller(sys._getframe(1))}"
            self.record.die("exit", line, exception="os._exit")

        activity.moved()
        self._exits.enter_context(tell_before_exit(note_exit))
        self._take_sigterm()
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._exits.close()
        self._thread.join(timeout=1.0)
        self.record.leave()

    def note(self, error: BaseException) -> None:
        is_full = isinstance(error, MemoryError) or is_out_of_memory(error)
        sample = error.names[0] if isinstance(error, GuardTripped) and error.names else ""
        self.record.die(
            "memory" if is_full else "exception",
            f"out of memory: {describe(error)}" if is_full else describe(error),
            exception=type(error).__name__,
            sample=sample,
        )

    def _watch(self) -> None:
        tick = min(BEAT_S, self.quiet_s / 4) if self.quiet_s else BEAT_S
        while not self._over.wait(tick):
            # Boundary: nothing that fails in here may end a run.
            try:
                self.beat()
                self._look(activity.quiet_s())
            except Exception as error:
                logger.debug("the watchdog failed: %s", describe(error))

    def beat(self) -> None:
        self.record.beat(step=self.step(), doing="; ".join(activity.current()))

    def _look(self, quiet_s: float) -> None:
        if not self.quiet_s:
            return
        if quiet_s < self._last:  # a silence that ended by itself is this run's pace
            self._longest, self._computed = max(self._longest, self._last), time.process_time()
        self._last = quiet_s
        most = max(self.quiet_s, 2 * self._longest)
        if quiet_s < most:
            self._said_at, self._has_stacks = 0.0, False
            return
        if quiet_s >= 2 * most and not self._has_stacks:
            self._has_stacks = True
            place = self._write_stacks()
            if self.is_main and place:
                logger.warning("still nothing after %.0f s; stacks: %s", quiet_s, place)
        # At once, and then ever more rarely.
        if self.is_main and (not self._said_at or quiet_s >= 2 * self._said_at):
            self._said_at = quiet_s
            logger.warning("%s", self._line(quiet_s))

    def _line(self, quiet_s: float) -> str:
        waits = "; ".join(activity.current()) or "something unnamed"
        step = self.step()
        at = f"step {step + 1}" if step is not None else "the run"
        computes = time.process_time() - self._computed > BUSY * quiet_s
        does = "still computes" if computes else "waits for"
        line = f"nothing has moved for {quiet_s:.0f} s: {at} {does} {waits}"
        mine = self.record.state.rank
        for other in read_processes(self.record.folder):
            if other.rank == mine or other.is_over:
                continue
            here = f"step {other.step + 1}" if other.step is not None else "no step yet"
            doing = other.doing or "something unnamed"
            what = f"at {here}, {doing}" if is_alive(other) else f"gone (it was at {here})"
            line += f". Process {other.rank} is {what}"
        return line

    def _write_stacks(self) -> str:
        place = self.record.folder / FOLDER / f"{self.record.state.rank}-stacks.txt"
        with contextlib.suppress(OSError), place.open("w") as file:
            file.write(f"{'; '.join(activity.current())}\n\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            loop = self.loop()
            if loop is not None:
                # A set that changes meanwhile, or a task that ends: the threads are there already.
                with contextlib.suppress(RuntimeError):
                    for task in asyncio.all_tasks(loop):
                        file.write("\n".join([f"\nTask {task.get_name()}", *_awaits(task), ""]))
            return str(shown_path(place))
        return ""

    def _take_sigterm(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def end(number: int, frame: FrameType | None) -> None:
            line = f"interrupted with SIGTERM{_caller(frame)}"
            self.record.die("signal", line, exception="SIGTERM")
            if self.is_main:
                logger.warning(
                    "told to end (SIGTERM); the same command goes on at the last checkpoint, or "
                    "begins again where there is none yet"
                )
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGTERM, end)
        self._exits.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)


def died_before(record: ProcessRecord) -> list[Death]:
    """The processes that died if another one died before this one, the first first; else none."""
    died = deaths(record.folder, since=record.started)
    return died if died and died[0].state.rank != record.state.rank else []


def _awaits(task: asyncio.Task[Any]) -> Iterator[str]:
    """Where a task waits, the innermost line last; its own stack would show only the outermost."""
    waits: Any = task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            yield f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)


def _caller(frame: FrameType | None) -> str:
    """` (file.py:12 in f)`: the line outside of this package's guards that a frame comes from."""
    while frame is not None and frame.f_code.co_filename.endswith(("user_code.py", "watchdog.py")):
        frame = frame.f_back
    if frame is None:
        return ""
    file = os.path.basename(frame.f_code.co_filename)
    return f" ({file}:{frame.f_lineno} in {frame.f_code.co_name})"
