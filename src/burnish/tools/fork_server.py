"""What runs in the fork server and its children (`supervisor.py` is the parent's side).

Run as a file, so that it imports no package.

The server reads `{"fork": function, "memory_mb", "path"}` with two handles, a connection and a file
for what is printed, imports the function's module and answers `{"pid", "modules"}` of a child that
serves the connection, or `{"error"}`; to `{"reap": pid}` it answers `{"code"}`, the exit status of a
child, null while it lives.

A child reads `{"function"}` and answers `{"ready": true}` once it has the function, then
`{"function", "job", "cpu_s", "wall_s"}` and answers `{"value": ...}` or `{"error": ...}`; `"last"`
in an answer says that the process ends with it. Frames are 8 bytes of length and then JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

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
    """The function at `package.module:name` or `folder/file.py:name`.

    The module's `prepare_child()` is called once before; what it loads there is not counted against
    the first job's clock.
    """
    module_path, _, name = path.rpartition(":")
    return getattr(import_prepared(module_path), name)  # type: ignore[no-any-return]


def import_prepared(path: str) -> ModuleType:
    """A module by its name, or by its file, which imports no package around it."""
    if path not in _prepared:
        if path.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(path).stem, path)
            if spec is None or spec.loader is None:
                raise ImportError(f"no Python file at {path}")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(path)
        getattr(module, "prepare_child", lambda: None)()
        _prepared[path] = module
    return _prepared[path]


_prepared: dict[str, ModuleType] = {}


def serve_forks(control: socket.socket) -> None:
    """Fork children until the parent closes the connection."""
    while True:
        order, handles = _read_order(control)
        if "reap" in order:
            found, status = os.waitpid(order["reap"], os.WNOHANG)
            _answer(control, {"code": os.waitstatus_to_exitcode(status) if found else None})
            continue
        try:
            sys.path[:] = order["path"]
            import_prepared(order["fork"].rpartition(":")[0])
        except Exception as error:  # boundary: the function's module is foreign code
            _answer(control, {"error": _line(error)})
        else:
            pid = os.fork()
            if not pid:
                _be_child(control, handles, order["memory_mb"])
            _answer(control, {"pid": pid, "modules": list(_prepared)})
        finally:
            for handle in handles:
                os.close(handle)


def _read_order(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, handles, _, _ = socket.recv_fds(control, 8, 2)
    if not head:
        raise EOFError
    head += _exactly(control, 8 - len(head), None)
    return json.loads(_exactly(control, int.from_bytes(head, "big"), None)), handles


def _be_child(control: socket.socket, handles: list[int], memory_mb: int) -> NoReturn:
    """What a fork does: its own session, output and limits, then jobs. Never returns."""
    status = 1
    try:
        control.close()
        os.setsid()
        connection = socket.socket(fileno=handles[0])
        for standard in (1, 2):
            os.dup2(handles[1], standard)
        limit_resources(memory_mb)
        with contextlib.suppress(EOFError, ConnectionError):
            serve(connection)
        status = 0
    except BaseException:  # boundary: nothing may go on in the server's place
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


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
        except BaseException as error:  # boundary: the function's module is foreign code
            _answer(connection, {"error": _line(error)})
        else:
            _answer(connection, {"ready": True})


def _do(connection: socket.socket, order: dict[str, Any]) -> bytes:
    function = resolve(order["function"])
    signal.setitimer(signal.ITIMER_PROF, order["cpu_s"])
    signal.setitimer(signal.ITIMER_REAL, order["wall_s"] + GRACE_S)
    try:
        return json.dumps({"value": function(**order["job"])}, allow_nan=False).encode()
    except MemoryError:
        write_frame(connection, OUT_OF_MEMORY)
        os._exit(1)
    except BaseException as error:  # boundary: the function is foreign code
        return json.dumps({"error": _line(error)}).encode()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    write_frame(connection, json.dumps(message).encode())


def _line(error: BaseException) -> str:
    try:
        text = " ".join(str(error)[:2000].split())
    except BaseException:  # boundary: the text of a foreign exception is foreign code too
        text = "(its text cannot be read)"
    return f"{type(error).__name__}: {text}"[:500]


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(EOFError, ConnectionError):
        serve_forks(control)


if __name__ == "__main__":
    main()
