"""Child processes of speed.py: one for each measurement, so that none can spoil another."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

HERE = Path(__file__).parent
LIMIT_S = 1800.0

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a child left behind, perhaps only in part, and why it failed where it did."""

    value: T | None
    error: str
    seconds: float


def run(script: str, job: Struct, kind: type[T], *, limit_s: float = LIMIT_S) -> Outcome[T]:
    """Run a script of this folder on a job; its progress lines go through to standard error."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        task, out = Path(place) / "job.json", Path(place) / "out.json"
        task.write_bytes(msgspec.json.encode(job))
        error = _wait([sys.executable, str(HERE / script), str(task), str(out)], limit_s)
        value = None
        if out.exists():
            value = msgspec.json.decode(out.read_bytes(), type=kind)
        elif not error:
            error = f"{script} wrote no result"
    return Outcome(value, error, time.perf_counter() - began)


def _wait(command: list[str], limit_s: float) -> str:
    """Why the command failed in one line; empty where it did not."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    name = Path(command[1]).name
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as child:
        late = threading.Event()

        def stop() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        last: deque[str] = deque(maxlen=1)
        try:
            assert child.stderr is not None
            for line in child.stderr:
                if line.startswith("speed: "):
                    sys.stderr.write(line)
                    sys.stderr.flush()
                elif line.strip():
                    last.append(line.strip())
            child.wait()
        finally:
            timer.cancel()
            child.kill()
    if late.is_set():
        return f"{name} was stopped after {limit_s:g} s"
    if child.returncode:
        return f"{name} ended with {child.returncode}: {last[-1] if last else 'no message'}"
    return ""
