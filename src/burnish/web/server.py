"""An HTTP server whose clients cannot keep it waiting, for `burnish view` and `serve-reward`.

uvicorn has no time limit for a request that never becomes whole, nor for a reply that nobody
reads. `BoundedConnection` adds both, and where too many connections are open it closes the one that
has kept the server waiting longest instead of turning the next client away.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar, NamedTuple

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from burnish.errors import UserError

_SLOWEST_BYTES = 16 * 1024
"""A reader takes at least so much within `Bounds.stall_s`, or all that is left."""


class Bounds(NamedTuple):
    """What a client may take of a server."""

    connections: int
    header_s: float = 10.0
    """From a connection's start, or a request's first byte, to the end of its headers."""
    request_s: float = 30.0
    stall_s: float = 30.0
    """How long a reader may take nothing to speak of."""

    @property
    def tick_s(self) -> float:
        """How often a connection is looked at."""
        return min(1.0, self.header_s / 4, self.request_s / 4, self.stall_s / 4)


class BoundedConnection(H11Protocol):
    """uvicorn's connection, closed where the client keeps it waiting."""

    bounds = Bounds(connections=128)
    waiting: ClassVar[dict[BoundedConnection, None]]
    """The server's connections that wait for their clients, the longest first."""
    closing: ClassVar[set[BoundedConnection]]
    """Those that were given up and are not gone yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._since = self.loop.time()
        """Since when the server waits for this request; of an idle connection, since its last."""
        self._has_begun = True
        """Whether the clock of a request runs; it stands still between two requests."""
        self._unread = (0, self._since)
        """Bytes of the reply that nobody took, and since when."""
        self._ticking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._ticking = self.loop.call_later(self.bounds.tick_s, self._tick)
        self._make_room()
        self.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self.waiting.pop(self, None)
        self.closing.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun, self._since = True, self.loop.time()
        super().data_received(data)
        if not self.waits_for_client:
            self.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        # A body that is still under way belongs to the old request, and so does its clock.
        if self.conn.their_state is not h11.SEND_BODY:
            self._has_begun, self._since = bool(self.conn.trailing_data[0]), self.loop.time()
        super().on_response_complete()
        if self.waits_for_client and not self.transport.is_closing():
            self.waiting.setdefault(self)

    def send_400_response(self, msg: str) -> None:
        # Where the reply has gone out already, uvicorn would fail with a traceback.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    @property
    def waits_for_client(self) -> bool:
        """Whether the request that is due has not come, or only half of it."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its client; else turn this one away."""
        if len(self.connections) - len(self.closing) <= self.bounds.connections:
            return
        longest = next(iter(self.waiting), None)
        if longest is None:
            self._refuse("503 Service Unavailable", "too many connections are open; come back.")
        else:
            del self.waiting[longest]
            self.closing.add(longest)
            longest.transport.abort()

    def _tick(self) -> None:
        self._ticking = self.loop.call_later(self.bounds.tick_s, self._tick)
        now = self.loop.time()
        if self._is_unread(now):
            self.transport.abort()
        elif self.waits_for_client and self._has_begun and not self.transport.is_closing():
            is_body = self.conn.their_state is h11.SEND_BODY
            limit_s = self.bounds.request_s if is_body else self.bounds.header_s
            if now - self._since > limit_s:
                self._refuse(
                    "408 Request Timeout", f"the request was not whole after {limit_s:g} seconds."
                )

    def _is_unread(self, now: float) -> bool:
        """Whether a reply has been lying for too long, in a connection that is closing too."""
        left = self.transport.get_write_buffer_size()
        before, since = self._unread
        if left == 0 or before == 0 or left <= before - _SLOWEST_BYTES:
            self._unread = (left, now)
            return False
        return now - since > self.bounds.stall_s

    def _refuse(self, status: str, line: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            head += f"content-length: {len(line) + 1}\r\nconnection: close\r\n"
            again = "retry-after: 1\r\n" if status.startswith("503") else ""
            self.transport.write(f"{head}{again}\r\n{line}\n".encode())
        self.transport.close()


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address; port 0 takes any free one."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.set_inheritable(True)
    except (OSError, OverflowError) as error:
        found.close()
        raise UserError(
            f"port {port} on {host} cannot be used: {error}. Take another: --port 0 finds a free one."
        ) from error
    return found


class LoopServer:
    """A server on the running event loop, beside its other work; it waits for nobody.

    `stop` closes every connection at once. uvicorn's own server takes over the signals of the
    process and needs a tenth of a second to end.
    """

    def __init__(self, app: ASGIApp, bounds: Bounds) -> None:
        self._app, self._state = app, ServerState()
        self._config = make_server(self, bounds, stop_s=1).config
        self._config.load()
        self._server: asyncio.Server | None = None
        self.address = ""
        """`http://127.0.0.1:40213`, once it is started."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; one that `stop` cancels ends without a word."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if self._server is not None:
                raise

    async def start(self) -> None:
        """Bind a free port and answer there."""

        def connection() -> asyncio.Protocol:
            kind: Any = self._config.http_protocol_class
            made: asyncio.Protocol = kind(self._config, server_state=self._state, app_state={})
            return made

        bound = bound_socket("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            connection, sock=bound, backlog=self._config.backlog
        )
        self.address = f"http://127.0.0.1:{bound.getsockname()[1]}"

    def stop(self) -> None:
        """Close the port and every connection; requests that run are cancelled."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()


def make_server(
    app: ASGIApp, bounds: Bounds, *, stop_s: float, lifespan: bool = False
) -> uvicorn.Server:
    """A server that runs until Ctrl-C or SIGTERM; requests that run then get `stop_s`."""
    config = uvicorn.Config(
        app,
        http=type(
            "Connection", (BoundedConnection,), {"bounds": bounds, "waiting": {}, "closing": set()}
        ),
        ws="none",
        loop="asyncio",
        lifespan="on" if lifespan else "off",
        # Warnings are about broken requests, one line each: a client could fill the terminal.
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=20,
        # So many are accepted at a time. Their first bytes are read two turns of the loop later,
        # and until then none may have been closed to make room for the next.
        backlog=max(1, bounds.connections // 4),
        timeout_graceful_shutdown=max(1, round(stop_s)),
        h11_max_incomplete_event_size=64 * 1024,
    )
    return uvicorn.Server(config)
