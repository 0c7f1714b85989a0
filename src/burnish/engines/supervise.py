"""The parts of a run as processes that are started, watched, started again and ended.

A `Part` is one process on a `Host`: this machine, or an actor's. It is ready once it gives a sign of
life, lost when it dies or gives none for too long, and then started again, later at each try. A
process lives in a group of its own, which a guard kills when whoever started it is gone, however
that ended: no part outlives its supervisor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from burnish.config.cluster import Cluster
from burnish.errors import BoundaryError
from burnish.tools.supervisor import ChildProcess

TICK_S = 0.2
"""Between two looks at the parts."""
ASK_S = 2.0
"""How long a server may take to answer that it is well."""
END_S = 5.0
"""How long a part may take to end once it was told to."""
STEADY_S = 600.0
"""A part that lived so long is not held to its earlier deaths."""
SLOWEST_S = 30.0
"""The longest wait before a part is started again."""
GUARD = 'read -r group; cat > /dev/null; kill -9 "-$group"'
"""Reads its starter's pipe, which closes when that dies."""


class PartLost(BoundaryError):
    """A part of the run died and could not be started again."""


@dataclass(frozen=True)
class Command:
    """How a process is started."""

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside this process's own."""
    log: Path | None = None
    """Gets all that it says; None: the terminal does."""
    cores: Sequence[int] = ()
    """The cores that it may use; none: all."""


class Host(Protocol):
    """Where one process at a time runs, as `LocalHost` does it."""

    @property
    def address(self) -> str:
        """Under which others reach what listens there."""

    def start(self, command: Command) -> int: ...
    def poll(self) -> int | None: ...
    def signal(self, number: int) -> None: ...
    def end(self, within_s: float) -> None: ...
    def free_port(self) -> int: ...


class LocalHost:
    """A process group on this machine, with its guard."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self._process: ChildProcess | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, command: Command) -> int:
        """Start it and give its process id."""
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD], stdin=subprocess.PIPE, start_new_session=True
        )
        with contextlib.ExitStack() as opened:
            said: list[Any] = [1, 2]
            if command.log is not None:
                command.log.parent.mkdir(parents=True, exist_ok=True)
                said = [opened.enter_context(command.log.open("ab"))] * 2
            environment = {**os.environ, **command.environment}
            self._process = ChildProcess(
                command.words, env=environment, stdout=said[0], stderr=said[1]
            )
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{self._process.pid}\n".encode())
        self._guard.stdin.flush()
        if command.cores:
            os.sched_setaffinity(self._process.pid, command.cores)
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.wait(0) if self._process is not None else None

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.is_alive:
            os.kill(self._process.pid, number)

    def end(self, within_s: float) -> None:
        """Kill what is left of it and its children after it had so long to end by itself."""
        process, guard, self._process, self._guard = self._process, self._guard, None, None
        if process is not None and guard is not None:
            if within_s:
                process.terminate()
                process.wait(within_s)
            process.kill()
            guard.kill()
            guard.communicate()

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        return port


class Part:
    """One process of the run, and what is known of its health."""

    def __init__(
        self,
        name: str,
        host: Host,
        command: Callable[[], Command],
        settings: Cluster,
        heard: Callable[[Part], bool],
        *,
        may_end: bool = False,
    ) -> None:
        """`command` says how it is started this time, `heard` whether it just gave a sign of life.

        `may_end`: its end by itself is no loss.
        """
        self.name, self.host, self.command, self.settings = name, host, command, settings
        self.pid, self.tries, self.is_ready = 0, 0, False
        self._heard, self._may_end = heard, may_end
        self.due = 0.0
        """When it is to be started; 0 once it was."""
        self._started = self._last = 0.0
        self.log: Path | None = None

    @property
    def is_started(self) -> bool:
        return not self.due

    def start(self) -> None:
        command = self.command()
        self.is_ready, self.log = False, command.log
        self._started = self._last = time.monotonic()
        self.pid = self.host.start(command)
        self.due = 0.0

    @property
    def age_s(self) -> float:
        """Seconds since it was last started."""
        return time.monotonic() - self._started

    def lost(self) -> str:
        """Why it has to be started again; empty while it is well, or has ended by itself."""
        now, code = time.monotonic(), self.host.poll()
        if code is not None:
            if code >= 0 and self._may_end:
                return ""
            if code >= 0 and not self.is_ready:
                raise PartLost(
                    f"{self.name} ended with exit code {code} before it was ready{self.last_words()}"
                )
            return f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        if self._heard(self):
            self.is_ready, self._last = True, now
            if now - self._started > STEADY_S:
                self.tries = 0
            return ""
        silent_s, limits = now - self._last, self.settings
        if self.is_ready and silent_s > limits.heartbeat_s:
            return f"gave no sign of life for {silent_s:.1f} s (cluster.heartbeat_s)"
        if not self.is_ready and silent_s > limits.start_s:
            return f"was not ready after {silent_s:.1f} s (cluster.start_s)"
        return ""

    def start_again(self, why: str) -> str:
        """Kill it and have it started after a while; `PartLost` where that was tried too often."""
        self.end(0.0)
        most = self.settings.restarts
        if self.is_spent:
            raise PartLost(
                f"{self.name} {why}, and was started again {most} times already (cluster.restarts)"
                f"{self.last_words()}"
            )
        self.tries += 1
        wait_s = min(SLOWEST_S, 2.0 ** (self.tries - 2)) if self.tries > 1 else 0.0
        self.due = time.monotonic() + wait_s
        return f"{self.name} {why}; it is started again ({self.tries} of {most})"

    @property
    def is_spent(self) -> bool:
        """Whether it has had all its tries."""
        return self.tries >= self.settings.restarts

    def end(self, within_s: float = END_S) -> None:
        self.host.end(within_s)

    def last_words(self) -> str:
        """`: the last line of its log (its path)`."""
        if self.log is None:
            return ""
        with contextlib.suppress(OSError):
            said = self.log.read_bytes()[-4096:].decode(errors="replace").strip()
            if said:
                return f": {said.splitlines()[-1][:300]} ({self.log})"
        return f"; its log is {self.log}"


def answers(url: str) -> bool:
    """Whether a server says that it is well."""
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=ASK_S).status_code == 200
    except httpx.HTTPError:
        return False


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
