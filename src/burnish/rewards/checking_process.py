"""Checking processes as their parent sees them: fork, send, receive, kill, and how they died.

A fork server imports what the checks need once and forks the processes that do the work: importing
a computer algebra system takes a second, a fork a few milliseconds. Neither has anything of this
process in it. The pool owns one server and a few checking processes; what runs on the other end of
both is child.py.
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
from typing import Any, NamedTuple

from burnish.rewards import child as child_process
from burnish.rewards.child import read_frame, write_frame

END_S = 5.0
"""Seconds in which a child that has closed its connection must have ended."""
POLL_S = 0.002
"""Seconds between two looks at whether a child has ended."""


class DeathError(Exception):
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
        self._process: subprocess.Popen[bytes] | None = None
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
        if child.server == self._started and process is not None and process.poll() is None:
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
                except (DeathError, TimeoutError, OSError):
                    return None
            if code is not None or time.monotonic() > deadline:
                return code
            time.sleep(POLL_S)

    def close(self) -> None:
        """End the server for good; its children end with their own connections."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

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
            raise DeathError("the pool of checking processes was closed")
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._end()
        ours, theirs = socket.socketpair()
        with theirs:
            self._control = self._held.enter_context(ours)
            self._words = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            # -P: our folder is no import root
            command = [sys.executable, "-P", child_process.__file__, str(theirs.fileno())]
            self._started += 1
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def _death(self) -> DeathError:
        """How the server ended, with the end of what it wrote."""
        how = "the checking process broke off its connection"
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                how = _obituary(self._process.wait(timeout=END_S), self._words)
        self._end()
        return DeathError(how)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        self._held.close()


class CheckingProcess:
    """One process that checks, forked when first needed, and again after each death."""

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
        """The number of the process if it is alive."""
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
            self._open(function)
        except OSError as error:
            self.kill()
            raise DeathError(f"the checking process could not start: {error}") from None
        except BaseException:
            self.kill()
            raise

    def _open(self, function: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.socket = self._held.enter_context(ours)
            self.words = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self.jobs_done, self.ready = 0, set()
            self._forked = self.server.fork(function, theirs, self.words.fileno(), self.memory_mb)

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

    def _death(self) -> DeathError:
        """How the process ended, with the end of what it wrote."""
        with self._ending:
            forked = self._forked
            if forked is None:
                return DeathError("the checking process was not running")
            code = self.server.reap(forked, END_S)
            if code is None:
                return DeathError("the checking process broke off its connection")
            self._forked = None
        return DeathError(_obituary(code, self.words), is_late=code == -signal.SIGPROF)

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


def _obituary(code: int, words: Any) -> str:
    """How a process ended, by its exit status and the last line of what it wrote."""
    words.seek(max(0, words.seek(0, os.SEEK_END) - 2000))
    lines = words.read().decode(errors="replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    said = f": {lines[-1][:300]}" if lines else ""
    return f"the checking process ended ({how}){said}"
