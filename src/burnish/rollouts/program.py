"""An agent program as a child process: its task on stdin, its address in the environment.

    ran = await run_program(["python", "agent.py"], task, address, model="smollm2", most=1 << 20)
    ran.problem or ran.last_line

The program runs in its own process group and ends with the call, however that ends: at its own
exit, at a deadline, at more output than it may write. Nothing of what it says is trusted or run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import anyio
import msgspec

from burnish.errors import RolloutError
from burnish.records import Task
from burnish.rollouts.endpoint import Address
from burnish.texts import safe
from burnish.tools import leash
from burnish.tools.inside.descend import end_carrying
from burnish.tools.supervisor import ChildProcess

LOOK_S = 0.25
"""Seconds between two looks at a program that is silent."""
SOON_S = 0.01
"""The same for one that has closed its output."""
KEPT = 64 << 10
"""Bytes that are kept of the end of what a program writes."""


TRACEBACK = "Traceback (most recent call last):"


class Ran(NamedTuple):
    """How a program ended."""

    last_line: str
    """The last line of its output that is not empty."""
    problem: str
    """Why it failed; empty where it did not."""


def task_json(task: Task) -> bytes:
    """What a program is told of its task: everything but the fields that give the label away."""
    shown = task.for_judge()
    told = {"id": task.id, "prompt": task.prompt, "messages": shown.messages}
    return msgspec.json.encode({**told, "fields": shown.fields})


def environment(address: Address, model: str, seed: int) -> dict[str, str]:
    """This process's environment with the episode's address in the usual variables."""
    known = os.environ
    here = "127.0.0.1,localhost"
    no_proxy = ",".join(filter(None, [known.get("NO_PROXY") or known.get("no_proxy"), here]))
    return {
        **known,
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_BASE": address.base_url,
        "OPENAI_API_KEY": address.key,
        "OPENAI_MODEL": model,
        "BURNISH_SEED": str(seed),
        # A proxy cannot reach this machine's own loopback.
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
    }


async def run_program(
    command: Sequence[str], task: Task, env: Mapping[str, str], *, most: int
) -> Ran:
    """Run a program to its end; one that writes over `most` bytes is killed."""
    words = [sys.executable if command[0] in ("python", "python3") else command[0], *command[1:]]
    leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *words]
    out, err = _Tail(most), _Tail(most)
    with tempfile.TemporaryFile() as told:
        told.write(task_json(task))
        told.seek(0)
        async with _pipe(out) as stdout, _pipe(err) as stderr:
            try:
                child = ChildProcess(
                    leashed, env=env, stdin=told.fileno(), stdout=stdout, stderr=stderr
                )
            except OSError as error:
                raise RolloutError(f"the program cannot be started: {error}") from error
            os.close(stdout)
            os.close(stderr)
            try:
                while child.is_alive and not (out.is_flood or err.is_flood):
                    # Most programs end right after they have closed their output.
                    if out.stirred.is_set():
                        await anyio.sleep(SOON_S)
                        continue
                    with anyio.move_on_after(LOOK_S):
                        await out.stirred.wait()
                is_flood = child.is_alive
            finally:
                child.kill_descendants()
                code = child.kill()
                # What has left the family still carries the episode's key.
                end_carrying(env["OPENAI_API_KEY"].encode())
            # What it wrote last may still be in the pipe; a stranger that holds it is not waited for.
            with anyio.move_on_after(LOOK_S):
                await out.closed.wait()
                await err.closed.wait()
    if is_flood:
        return Ran("", f"the program wrote over {most >> 10} KB")
    last = out.last_line()
    return Ran(last, "" if code == 0 else f"the program {_ended(code)}{_words(err.error())}")


def _ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"


def _words(line: str) -> str:
    return f": {safe(line[:300])}" if line else ""


class _Tail(asyncio.Protocol):
    """The end of what a program writes to one pipe."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.end = b""
        self.closed, self.stirred = anyio.Event(), anyio.Event()
        """`stirred` where there is something to look at: a flood, or the end."""

    @property
    def is_flood(self) -> bool:
        return self.size > self.most

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        self.end = (self.end + data)[-KEPT:]
        if self.is_flood:
            self.stirred.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self.stirred.set()

    def last_line(self) -> str:
        """The last line that is not empty."""
        return next((line.strip() for line in reversed(self._lines()) if line.strip()), "")

    def error(self) -> str:
        """What a program that failed says of it: the exception of its last traceback, whole, in one
        line; else its last line."""
        lines = self._lines()
        starts = [n for n, line in enumerate(lines) if line.startswith(TRACEBACK)]
        told = lines[starts[-1] + 1 :] if starts else []
        first = next((n for n, line in enumerate(told) if line and not line[0].isspace()), None)
        if first is None:
            return self.last_line()
        return " ".join(" ".join(told[first:]).split())

    def _lines(self) -> list[str]:
        return self.end.decode("utf-8", "replace").splitlines()


class _pipe:  # noqa: N801 - a context manager
    """A pipe whose other end the loop reads into a tail; inside, the end that is written."""

    def __init__(self, tail: _Tail) -> None:
        self.tail = tail

    async def __aenter__(self) -> int:
        read, self.write = os.pipe()
        loop = asyncio.get_running_loop()
        file = os.fdopen(read, "rb", buffering=0)
        self.transport, _ = await loop.connect_read_pipe(lambda: self.tail, file)
        return self.write

    async def __aexit__(self, *_: object) -> None:
        self.transport.close()
