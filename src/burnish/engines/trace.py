"""The full rewards in a side file, because a trainer's batch holds nothing but numbers.

    trace = TraceFile("traces/train.jsonl")
    key = trace.write(task, response, reward)      # task id and hash of the response
    for line in read_traces("traces/train.jsonl"): line.reward.evidence

Each line is written by one append, so that the processes of one machine may share a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from burnish.errors import StoreError
from burnish.records import Response, Reward, Task
from burnish.seeds import digest


class Trace(Struct, frozen=True):
    """One scored response."""

    key: str
    """`task id/response hash`: what the trainer's own tables show."""
    task: str
    response: str
    """Hash of the response's text."""
    reward: Reward


class TraceFile:
    """JSON lines of `Trace`; opened when the first reward is written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, task: Task, response: Response, reward: Reward) -> str:
        """Append one reward and give its key."""
        key = trace_key(task, response)
        line = msgspec.json.encode(Trace(key, task.id, digest(response.text), reward)) + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, flags, 0o644)
            try:
                written = os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(f"the trace file {self.path} cannot be written: {error}.") from error
        if written != len(line):
            raise StoreError(f"the trace file {self.path} took {written} of {len(line)} bytes.")
        return key


def trace_key(task: Task, response: Response) -> str:
    """`task id/response hash`."""
    return f"{task.id}/{digest(response.text)}"


def read_traces(path: str | Path) -> Iterator[Trace]:
    """The traces of a file, in the order of writing."""
    decoder = msgspec.json.Decoder(Trace)
    number = 0
    try:
        with Path(path).open("rb") as lines:
            for line in lines:
                number += 1
                yield decoder.decode(line)
    except OSError as error:
        raise StoreError(f"the trace file {path} cannot be read: {error}.") from error
    except msgspec.DecodeError as error:
        raise StoreError(f"the trace file {path}, line {number}: {error}.") from error
