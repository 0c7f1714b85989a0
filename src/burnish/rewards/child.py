"""The other end of the pool: what runs inside a checking process. Imports nothing heavy.

It reads `{"function"}` and answers `{"ready": true}` once the function is imported, then
`{"function", "job", "cpu_s", "wall_s"}` and answers `{"value": ...}` or `{"error": ...}`; `"last"`
in an answer says that the process ends with it. Frames are 8 bytes of length and then JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

GRACE_S = 10.0
"""Seconds past its wall clock that a job may live when no parent is left to kill it."""

OUT_OF_MEMORY = b'{"error": "MemoryError: the memory limit was reached", "last": true}'


def read_frame(connection: socket.socket, deadline: float | None = None) -> bytes:
    """One frame; `EOFError` when the other end has closed, `TimeoutError` past the deadline."""
    size = int.from_bytes(_exactly(connection, 8, deadline), "big")
    return _exactly(connection, size, deadline)


def write_frame(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(len(payload).to_bytes(8, "big") + payload)


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
        chunk = connection.recv(min(size - len(chunks), 1 << 20))
        if not chunk:
            raise EOFError
        chunks += chunk
    return bytes(chunks)


def limit_resources(memory_mb: int) -> None:
    """Bound memory, files written and core dumps, where the system can."""
    import resource

    memory = memory_mb << 20
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 16 << 20)]
    if sys.platform != "darwin":  # macOS refuses a lower address-space limit
        limits.append((resource.RLIMIT_AS, memory))
    for kind, bound in limits:
        _, hard = resource.getrlimit(kind)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))


def resolve(path: str) -> Callable[..., Any]:
    """The function at `package.module:name`, its module's `prepare_child()` called once before.

    What a module loads there is not counted against the first job's clock.
    """
    if path not in _resolved:
        module_path, _, name = path.partition(":")
        module = importlib.import_module(module_path)
        found: Callable[..., Any] = getattr(module, name)
        getattr(module, "prepare_child", lambda: None)()
        _resolved[path] = found
    return _resolved[path]


_resolved: dict[str, Callable[..., Any]] = {}


def serve(connection: socket.socket) -> None:
    """Answer orders until the parent closes the connection or a job runs out of memory."""
    # The default action of both timers is done by the kernel: it ends the process even where a
    # job sits in C code, and even where the parent was killed before it could do the same.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        order = json.loads(read_frame(connection))
        if "job" in order:
            write_frame(connection, _do(connection, order))
            continue
        try:
            resolve(order["function"])
        except Exception as error:  # boundary: the function's module is foreign code
            _answer(connection, {"error": _line(error)})
        else:
            _answer(connection, {"ready": True})


def _do(connection: socket.socket, order: dict[str, Any]) -> bytes:
    """The answer to one job."""
    function = resolve(order["function"])
    signal.setitimer(signal.ITIMER_PROF, order["cpu_s"])
    signal.setitimer(signal.ITIMER_REAL, order["wall_s"] + GRACE_S)
    try:
        return json.dumps({"value": function(**order["job"])}, allow_nan=False).encode()
    except MemoryError:
        write_frame(connection, OUT_OF_MEMORY)
        os._exit(1)
    except Exception as error:  # boundary: the function is foreign code
        return json.dumps({"error": _line(error)}).encode()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    write_frame(connection, json.dumps(message).encode())


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def main() -> None:
    """Entry of the process: `python -P child.py FD MEMORY_MB`."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    limit_resources(int(sys.argv[2]))
    with contextlib.suppress(EOFError, ConnectionError):
        serve(connection)


if __name__ == "__main__":
    main()
