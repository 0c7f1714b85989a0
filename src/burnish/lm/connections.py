"""HTTP connections to one server: reused, closed with their event loop, replies of bounded size.

connections = Connections(key)
async with connections.one() as client, client.stream("POST", address, content=body) as reply:
    data = await read_body(reply, address, most=64 << 20)
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from anyio.lowlevel import RunVar

from burnish.lm.failures import BadReply, ForeignReply

if TYPE_CHECKING:
    import ssl

    import httpx

_serial = count()


class _Clients(NamedTuple):
    """The clients of one event loop."""

    all: list[httpx.AsyncClient]
    free: list[httpx.AsyncClient]
    end: AsyncGenerator[None, None]
    """Closes them where the loop ends without `aclose`: a loop finishes its async generators."""


async def _close_at_the_end(clients: list[httpx.AsyncClient]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        for client in clients:
            await client.aclose()


class Connections:
    """HTTP clients with one connection each, apart for every event loop."""

    def __init__(self, key: str = "") -> None:
        """`key` is sent as the bearer token."""
        self._headers = {"accept-encoding": "gzip", "content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._trust: ssl.SSLContext | None = None
        # A client belongs to one event loop; its owner may outlive several. The name is this
        # object's alone: a client carries the key, and some versions of anyio go by the name.
        self._clients: RunVar[_Clients | None] = RunVar(f"burnish_clients_{next(_serial)}", None)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client for exclusive use."""
        clients = self._clients.get()
        if clients is None:
            opened: list[httpx.AsyncClient] = []
            clients = _Clients(opened, [], _close_at_the_end(opened))
            await anext(clients.end)
            self._clients.set(clients)
        if not clients.free:
            clients.all.append(self._new())
            clients.free.append(clients.all[-1])
        client = clients.free.pop()
        try:
            yield client
        finally:
            if not client.is_closed:
                clients.free.append(client)

    async def aclose(self) -> None:
        """Close every connection of this event loop, also those in use."""
        clients = self._clients.get()
        if clients is not None:
            self._clients.set(None)
            await clients.end.aclose()

    def _new(self) -> httpx.AsyncClient:
        import httpx

        if self._trust is None:  # reading the certificates takes longer than many requests
            self._trust = httpx.create_ssl_context()
        # The pool's deadline covers the whole attempt; httpx's own would only cover one read.
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        return httpx.AsyncClient(
            headers=self._headers, timeout=None, limits=limits, verify=self._trust
        )


async def read_body(response: httpx.Response, where: str, most: int) -> bytes:
    """The body of a reply, unpacked; one that unpacks to more than `most` bytes is given up early.

    httpx would unpack a whole part at once, and packings of packings in a row: a hundred bytes
    then become gigabytes.
    """
    packing = response.headers.get("content-encoding", "").strip().lower()
    if packing not in ("", "identity", "gzip", "x-gzip"):
        raise ForeignReply(f"{where}: the reply's content encoding is broken: {packing[:40]!r}")
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if "gzip" in packing else None
    parts, size = [], 0
    async for raw in response.aiter_raw():
        part = raw if unpack is None else _unpacked(unpack, raw, most - size, where)
        size += len(part)
        if size > most:
            raise BadReply(f"{where}: the reply is longer than {most} bytes")
        parts.append(part)
    if unpack is not None and not unpack.eof and parts:
        raise ForeignReply(f"{where}: the reply's content encoding is broken: it is cut off")
    return b"".join(parts)


def _unpacked(unpack: zlib._Decompress, raw: bytes, most: int, where: str) -> bytes:
    try:
        return unpack.decompress(raw, most + 1)
    except zlib.error as error:
        raise ForeignReply(f"{where}: the reply's content encoding is broken: {error}") from error
