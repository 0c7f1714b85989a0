"""One checking process as its parent sees it: start, send, receive, kill, and how it died.

The pool owns a few of these; what runs on the other end is child.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from burnish.rewards import child as child_process
from burnish.rewards.child import read_frame, write_frame

END_S = 5.0
"""Seconds in which a child that has closed its connection must have ended."""


class DeathError(Exception):
    """The child ended or was killed; the text says how."""

    def __init__(self, how: str, *, is_late: bool = False) -> None:
        super().__init__(how)
        self.is_late = is_late
        """Whether the job's clock ended it."""


class CheckingProcess:
    """One process, started when first needed, and again after each death."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        self.process: subprocess.Popen[bytes] | None = None
        self.jobs_done = 0
        self.imported: set[str] = set()
        self.serves: object | None = None
        """Whose job it has, for those who own it."""
        self.interrupted = False
        self._held = contextlib.ExitStack()

    def start(self) -> None:
        """Start the process unless it runs; a system that refuses counts as its death."""
        if self.process is not None:
            if self.process.poll() is None:
                return
            self.kill()
        try:
            self._open()
        except OSError as error:
            self.kill()
            raise DeathError(f"the checking process could not start: {error}") from None

    def _open(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.socket = self._held.enter_context(ours)
            self.words = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self.jobs_done, self.imported = 0, set()
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                "PYTHONHASHSEED": "0",
                "OMP_NUM_THREADS": "1",
            }
            # -P: our folder is no import root
            command = [sys.executable, "-P", child_process.__file__]
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self.memory_mb)],
                stdin=subprocess.DEVNULL,
                stdout=self.words,
                stderr=self.words,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

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
        if self.process is None:
            return DeathError("the checking process was not running")
        try:
            code = self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            return DeathError("the checking process broke off its connection")
        self.words.seek(max(0, self.words.seek(0, os.SEEK_END) - 2000))
        lines = self.words.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        words = f": {lines[-1][:300]}" if lines else ""
        return DeathError(
            f"the checking process ended ({how}){words}", is_late=code == -signal.SIGPROF
        )

    def kill(self) -> None:
        """End the process and let go of what belongs to it."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
        self._held.close()
        self.interrupted = False

    def interrupt(self) -> None:
        """End the process from another thread; the thread that serves it lets go of the rest."""
        process = self.process
        self.interrupted = True
        if process is not None:
            process.kill()
