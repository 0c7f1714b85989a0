"""Clients that keep a server waiting: half requests, floods, and replies that nobody reads."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import anyio
import pytest

from burnish.web.server import Bounds, make_server

pytestmark = pytest.mark.attacks

GET = b"GET /%s HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
HALF = b"GET /half HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "
LARGE = b"x" * 32_000_000
QUICK = Bounds(connections=8, header_s=0.4, request_s=0.8, stall_s=0.8)


class App:
    """Answers by path: `large` a lot, `held` when told, all else a word."""

    def __init__(self) -> None:
        self.held = 0
        self.free = threading.Event()

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        if scope["path"] == "/held":
            self.held += 1
            while not self.free.is_set():  # noqa: ASYNC110  set by another thread
                await anyio.sleep(0.01)
        if scope["path"] == "/body":
            while (await receive()).get("more_body"):
                pass
        body = LARGE if scope["path"] == "/large" else b"fine"
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def port(app: App) -> Iterator[int]:
    with serving(app, QUICK) as found:
        yield found


@contextlib.contextmanager
def serving(app: App, bounds: Bounds) -> Iterator[int]:
    server = make_server(app, bounds, stop_s=1)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield bound.getsockname()[1]
        finally:
            app.free.set()
            server.should_exit = True
            thread.join(60)


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def client(port: int, data: bytes = b"", room: int = 0) -> socket.socket:
    made = socket.socket()
    if room:  # the window is agreed on when the connection is made
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.settimeout(60)
    made.connect(("127.0.0.1", port))
    made.sendall(data)
    return made


def reply(sent: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    try:
        while part := sent.recv(65536):
            found += part
    except ConnectionResetError:
        return found + b"(reset)"
    return found


def still_takes(sent: socket.socket, drip: bytes) -> bool:
    try:
        sent.sendall(drip)
    except (BrokenPipeError, ConnectionResetError):
        return False
    time.sleep(0.04)
    return True


def first(sent: socket.socket) -> bytes:
    """The reply's first line."""
    return sent.recv(12)


def test_a_half_sent_request_is_closed_with_a_word(port: int) -> None:
    with client(port, HALF) as half:
        assert reply(half).startswith(b"HTTP/1.1 408 ")
    with client(port) as silent:
        assert b"408" in reply(silent)


@pytest.mark.parametrize(
    ("start", "drip"),
    [
        (HALF, b"a"),
        (b"GET / HTTP/1.1\r\n", b"x: y\r\n"),
        (b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n", b"a"),
        (b"POST /body HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        # Answered before its body has come, which then never ends.
        (b"GET /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        (GET % b"now" + HALF, b"a"),
    ],
)
def test_a_request_that_drips_is_closed_all_the_same(port: int, start: bytes, drip: bytes) -> None:
    with client(port, start) as slow:
        wait_until(lambda: not still_takes(slow, drip))


def test_a_flood_of_half_requests_keeps_nobody_out_and_does_not_stay(port: int) -> None:
    flood = [client(port, HALF) for _ in range(8 * QUICK.connections)]
    with client(port, GET % b"owner") as owner:
        assert first(owner) == b"HTTP/1.1 200"
    assert {reply(one)[:12] for one in flood} <= {b"", b"(reset)", b"HTTP/1.1 408"}
    for one in flood:
        one.close()


def test_connections_that_keep_coming_push_nobody_out(app: App) -> None:
    is_over = threading.Event()

    def come(port: int) -> None:
        held: list[socket.socket] = []
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                held.append(client(port, HALF))
            if len(held) > 100:
                held.pop(0).close()
        for one in held:
            one.close()

    with serving(app, Bounds(connections=40)) as port:
        rude = threading.Thread(target=come, args=(port,))
        rude.start()
        try:
            for _ in range(20):
                with client(port, GET % b"owner") as owner:
                    assert first(owner) == b"HTTP/1.1 200"
        finally:
            is_over.set()
            rude.join(60)


def test_requests_at_work_are_never_closed_for_others(app: App, port: int) -> None:
    busy = [client(port, GET % b"held") for _ in range(QUICK.connections)]
    wait_until(lambda: app.held == QUICK.connections)
    with client(port, GET % b"now") as late:
        refused = reply(late)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in refused
    time.sleep(2 * QUICK.header_s)
    app.free.set()
    assert [first(one) for one in busy] == [b"HTTP/1.1 200"] * len(busy)
    for one in busy:
        one.close()


def test_a_connection_may_rest_between_requests(port: int) -> None:
    with client(port, GET % b"one") as kept:
        assert first(kept) == b"HTTP/1.1 200"
        time.sleep(2.5 * QUICK.header_s)
        kept.sendall(GET % b"two")
        kept.shutdown(socket.SHUT_WR)
        assert reply(kept).count(b"HTTP/1.1 200") == 1


def test_a_reply_that_nobody_reads_is_given_up(port: int) -> None:
    with client(port, GET % b"large", room=4096) as slow:
        time.sleep(4 * QUICK.stall_s)
        assert len(reply(slow)) < len(LARGE)


def read_slowly(port: int) -> tuple[int, float]:
    """Bytes that a slow reader got of the large reply, and its seconds."""
    with client(port, GET % b"large" + b"", room=1_000_000) as slow:
        slow.settimeout(60)
        got, begun = 0, time.monotonic()
        while got < len(LARGE) and (part := slow.recv(400_000)):
            got += len(part)
            time.sleep(0.015)
    return got, time.monotonic() - begun


def test_a_reader_that_takes_its_time_gets_all(port: int) -> None:
    # A busy machine may hold this process up for longer than the server waits: then once more.
    tries = [read_slowly(port) for _ in range(3)]
    assert any(got >= len(LARGE) and seconds > QUICK.stall_s for got, seconds in tries), tries


def test_requests_ahead_of_their_replies_are_answered_in_order(port: int) -> None:
    with client(port, GET % b"a" * 20) as ahead:
        wait_until(lambda: ahead.recv(65536, socket.MSG_PEEK).count(b"fine") == 20)


def test_what_comes_after_a_broken_body_is_no_request(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"GET /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with client(port, head) as broken:
        assert first(broken) == b"HTTP/1.1 200"
        broken.sendall(b"no length\r\n" + GET % b"next")
        assert b"HTTP/1.1 200" not in reply(broken)
    assert [record.getMessage() for record in caplog.records] == []
