"""The supervisor of killable processes: starts, time-limits, kills and reaps every child.

`ChildProcess` is a program in its own process group; the sandbox runs foreign code in one.
`ForkServer` and `ForkedChild` are the warm processes of the reward pool: a child that answers
framed JSON is forked from a server that has imported the child's function, and forked again after
each death. Whatever a child says or does, `kill` ends it and collects its exit status.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from burnish.tools import fork_server
from burnish.tools.fork_server import read_frame, write_frame
from burnish.tools.inside.descend import end_below

T = TypeVar("T")
END_S = 5.0
"""Seconds in which a child that has closed its connection must have ended."""
LOST = "the checking process broke off its connection"
POLL_S = 0.002
"""Seconds between two looks at whether a child has ended."""


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2


_limiters: RunVar[dict[tuple[str, int], anyio.CapacityLimiter]] = RunVar("burnish_child_waiters")


async def wait_in_thread(call: Callable[[], T], purpose: str, most: int) -> T:
    """Make a blocking call in a thread that is left behind when the caller is cancelled.

    At most `most` threads of one purpose wait in one event loop. They are counted apart from the
    loop's other threads, so that waiting for children starves nobody else.
    """
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {}
        _limiters.set(limiters)
    limiter = limiters.setdefault((purpose, most), anyio.CapacityLimiter(most))
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)


class ChildProcess:
    """One program in its own session and process group."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        cwd: str | None = None,
    ) -> None:
        """Start it; `OSError` where the system refuses."""
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, within_s: float) -> int | None:
        """The exit status; None if the process has not ended in time."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Ask it to end. An init of a process namespace takes everything inside with it."""
        self._process.terminate()

    def kill_descendants(self) -> None:
        """Kill everything below it, whatever process group it has moved to."""
        end_below(self.pid)

    def kill(self) -> int:
        """Kill the whole process group, also what the leader has left in it, and reap the leader."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()


class ChildDeath(Exception):
    """The child ended or was killed; the text says how."""

    def __init__(self, how: str, *, is_late: bool = False) -> None:
        super().__init__(how)
        self.is_late = is_late
        """Whether the job's clock ended it."""


class ImportFailed(Exception):
    """The function cannot be imported; the text says why."""


class Forked(NamedTuple):
    """A new child: its process id, the server it came from, and what that had imported."""

    pid: int
    server: int
    modules: frozenset[str]


class ForkServer:
    """The process that children are forked from; started when first needed, and after a death."""

    def __init__(self, start_timeout_s: float) -> None:
        self.start_timeout_s = start_timeout_s
        self._asking = threading.Lock()  # invariant: one order at a time is without its answer
        self._process: ChildProcess | None = None
        self._started = 0
        self._closed = False
        self._held = contextlib.ExitStack()

    def fork(self, function: str, connection: socket.socket, words: int, memory_mb: int) -> Forked:
        """A child that serves the connection, forked once the function's module is imported."""
        path = [entry or os.getcwd() for entry in sys.path]
        order = {"fork": function, "memory_mb": memory_mb, "path": path}
        with self._asking:
            answer = self._ask(order, (connection.fileno(), words))
            if "error" in answer:
                raise ImportFailed(answer["error"])
            return Forked(answer["pid"], self._started, frozenset(answer["modules"]))

    def kill(self, child: Forked) -> None:
        """End a child at once. Its number is its own until `reap` has given its exit status."""
        process = self._process
        if child.server == self._started and process is not None and process.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def reap(self, child: Forked, within_s: float) -> int | None:
        """The exit status of a child that ends, as `subprocess` counts it; None if it does not."""
        deadline = time.monotonic() + within_s
        while True:
            with self._asking:
                if child.server != self._started:
                    return None
                try:
                    code: int | None = self._ask({"reap": child.pid})["code"]
                except (ChildDeath, TimeoutError, OSError):
                    return None
            if code is not None or time.monotonic() > deadline:
                return code
            time.sleep(POLL_S)

    def close(self) -> None:
        """End the server for good; its children end with their own connections."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    def _ask(self, order: dict[str, Any], handles: tuple[int, ...] = ()) -> Any:
        """The answer to one order. To be called with the lock held."""
        self._start()
        payload = json.dumps(order).encode()
        head = len(payload).to_bytes(8, "big")
        try:
            self._control.settimeout(self.start_timeout_s)
            # Handles travel with the first bytes; the rest may be longer than the socket takes.
            if handles:
                socket.send_fds(self._control, [head], handles)
            else:
                self._control.sendall(head)
            self._control.sendall(payload)
            return json.loads(read_frame(self._control, time.monotonic() + self.start_timeout_s))
        except TimeoutError:
            self._end()
            raise
        except (OSError, EOFError, ValueError):
            raise self._death() from None

    def _start(self) -> None:
        if self._closed:
            raise ChildDeath("the pool of checking processes was closed")
        if self._process is not None:
            if self._process.is_alive:
                return
            self._end()
        ours, theirs = socket.socketpair()
        with theirs:
            self._control = self._held.enter_context(ours)
            self._words = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            # -P: our folder is no import root
            command = [sys.executable, "-P", fork_server.__file__, str(theirs.fileno())]
            self._started += 1
            self._process = ChildProcess(
                command,
                stdout=self._words,
                stderr=self._words,
                env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
                pass_fds=(theirs.fileno(),),
            )

    def _death(self) -> ChildDeath:
        code = None if self._process is None else self._process.wait(END_S)
        how = LOST if code is None else _how_it_ended(code, self._words)
        self._end()
        return ChildDeath(how)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        self._held.close()


class ForkedChild:
    """One child of the fork server, forked when first needed and again after each death."""

    def __init__(self, server: ForkServer, memory_mb: int) -> None:
        self.server = server
        self.memory_mb = memory_mb
        self.jobs_done = 0
        self.ready: set[str] = set()
        """Functions that it has said it can call."""
        self.serves: object | None = None
        """Whose job it has, for those who own it."""
        self.interrupted = False
        self._forked: Forked | None = None
        self._ending = threading.Lock()  # invariant: nobody signals a process that was reaped
        self._held = contextlib.ExitStack()

    @property
    def pid(self) -> int | None:
        forked = self._forked
        return forked.pid if forked is not None and not self._is_gone() else None

    def start(self, function: str) -> None:
        """Fork a process with the function's module in it, unless there is one.

        A system that refuses counts as its death; a function that cannot be imported raises
        `ImportFailed`.
        """
        if self._forked is not None:
            has_module = module_of(function) in self._forked.modules
            if has_module and not self._is_gone():
                return
            self.kill()
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                self.socket = self._held.enter_context(ours)
                self.words = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                self.jobs_done, self.ready = 0, set()
                words = self.words.fileno()
                self._forked = self.server.fork(function, theirs, words, self.memory_mb)
        except OSError as error:
            self.kill()
            raise ChildDeath(f"the checking process could not start: {error}") from None
        except BaseException:
            self.kill()
            raise

    def _is_gone(self) -> bool:
        """True where the other end of the connection was closed, by whatever ended the process."""
        looking = select.poll()
        looking.register(self.socket, 0)
        return bool(looking.poll(0))

    def send(self, frame: bytes, within_s: float) -> None:
        self.socket.settimeout(within_s)
        try:
            write_frame(self.socket, frame)
        except TimeoutError:
            raise
        except OSError:
            raise self._death() from None

    def receive(self, within_s: float) -> Any:
        """The next message; `TimeoutError` past the wall clock."""
        try:
            return json.loads(read_frame(self.socket, time.monotonic() + within_s))
        except TimeoutError:
            raise
        except (OSError, EOFError, ValueError):
            raise self._death() from None

    def _death(self) -> ChildDeath:
        """How the process ended, with the end of what it wrote."""
        with self._ending:
            forked = self._forked
            if forked is None:
                return ChildDeath("the checking process was not running")
            code = self.server.reap(forked, END_S)
            if code is None:
                return ChildDeath(LOST)
            self._forked = None
        return ChildDeath(_how_it_ended(code, self.words), is_late=code == -signal.SIGPROF)

    def kill(self) -> None:
        """End the process and let go of what belongs to it."""
        with self._ending:
            forked, self._forked = self._forked, None
            if forked is not None:
                self.server.kill(forked)
                self.server.reap(forked, END_S)
        self._held.close()
        self.interrupted = False

    def interrupt(self) -> None:
        """End the process from another thread; the thread that serves it lets go of the rest."""
        self.interrupted = True
        with self._ending:
            if self._forked is not None:
                self.server.kill(self._forked)


def module_of(function: str) -> str:
    """The module or file of `package.module:name` or `folder/file.py:name`."""
    return function.rpartition(":")[0]


def _how_it_ended(code: int, words: Any) -> str:
    """How a process ended, by its exit status and the last line of what it wrote."""
    words.seek(max(0, words.seek(0, os.SEEK_END) - 2000))
    lines = words.read().decode(errors="replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    said = f": {lines[-1][:300]}" if lines else ""
    return f"the checking process ended ({how}){said}"
