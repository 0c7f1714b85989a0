"""A loopback server that speaks the OpenAI protocol as badly as it is told to.

    with HostileServer([status(500), ok("fine")]) as server:      # request by request; last repeats
        OpenAILM(server.url, "m")

A behaviour is a function of the handler and the request's body. The server keeps every request,
how many ran at once, and whether the client hung up before the answer.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float = field(default_factory=time.monotonic)
    hung_up: bool = False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    seen: Seen

    def do_GET(self) -> None:
        self._serve(b"{}")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("content-length", "0"))))

    def _serve(self, data: bytes) -> None:
        owner = self.server.owner
        self.seen = Seen(self.path, dict(self.headers), json.loads(data or b"{}"))
        with owner.lock:
            number = len(owner.requests)
            owner.requests.append(self.seen)
            owner.running += 1
            owner.peak = max(owner.peak, owner.running)
        try:
            owner.behaviour(number, self.seen)(self, self.seen.body)
        except (BrokenPipeError, ConnectionResetError):
            self.seen.hung_up = True
        finally:
            with owner.lock:
                owner.running -= 1

    def send(self, code: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def hold(self, seconds: float) -> bool:
        """Wait; True at once when the client hangs up meanwhile."""
        end = time.monotonic() + seconds
        poll = select.poll()  # unlike select, at home with descriptors above 1024
        poll.register(self.connection, select.POLLIN)
        while time.monotonic() < end and not self.server.owner.closing.is_set():
            if poll.poll(10) and not self.connection.recv(1, socket.MSG_PEEK):
                self.seen.hung_up = True
                self.close_connection = True
                return True
        return False

    def log_message(self, format: str, *args: Any) -> None:
        pass


Behaviour = Callable[[Handler, dict[str, Any]], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: HostileServer


class HostileServer:
    def __init__(
        self, behaviours: Sequence[Behaviour] | Callable[[int, Seen], Behaviour], port: int = 0
    ) -> None:
        self._behaviours = behaviours
        self.requests: list[Seen] = []
        self.running = 0
        self.peak = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.owner = self
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def behaviour(self, number: int, seen: Seen) -> Behaviour:
        if callable(self._behaviours):
            return self._behaviours(number, seen)
        return self._behaviours[min(number, len(self._behaviours) - 1)]

    def __enter__(self) -> HostileServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


def chat_reply(text: str = "fine", model: str = "m", n: int = 1, **more: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | more
    return {
        "model": model,
        "choices": [{"index": i} | choice for i in range(n)],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2 * n},
    }


def reply(content: Any) -> Behaviour:
    """Any JSON with status 200."""
    return lambda handler, body: handler.send(200, json.dumps(content).encode())


def ok(text: str = "fine", **more: Any) -> Behaviour:
    """A good answer by the model and with the `n` that were asked for."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        content = chat_reply(text, body.get("model", "m"), body.get("n", 1), **more)
        handler.send(200, json.dumps(content).encode())

    return answer


def status(code: int, text: str = "no", **headers: str) -> Behaviour:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, body: handler.send(code, text.encode(), named)


def raw(data: bytes) -> Behaviour:
    return lambda handler, body: handler.send(200, data)


def slow(seconds: float, then: Behaviour) -> Behaviour:
    """Say nothing for a while."""

    def wait(handler: Handler, body: dict[str, Any]) -> None:
        if not handler.hold(seconds):
            then(handler, body)

    return wait


def together(count: int, then: Behaviour) -> Behaviour:
    """Answer nobody before `count` are here, and then so late that one too many would show."""

    def wait(handler: Handler, body: dict[str, Any]) -> None:
        owner, end = handler.server.owner, time.monotonic() + 120
        while owner.peak < count and time.monotonic() < end and not owner.closing.is_set():
            time.sleep(0.005)
        handler.hold(0.1)
        then(handler, body)

    return wait


def half_closed(handler: Handler, body: dict[str, Any]) -> None:
    """Promise a long body, send its beginning, close."""
    handler.send_response(200)
    handler.send_header("content-length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"model": "m", "cho')
    handler.close_connection = True


def no_answer(handler: Handler, body: dict[str, Any]) -> None:
    """Close without a byte."""
    handler.close_connection = True


def trickle(handler: Handler, body: dict[str, Any]) -> None:
    """Send one byte at a time, so that no single read ever takes long."""
    handler.send_response(200)
    handler.send_header("content-length", "5000")
    handler.end_headers()
    for _ in range(5000):
        handler.wfile.write(b" ")
        if handler.hold(0.02):
            return
