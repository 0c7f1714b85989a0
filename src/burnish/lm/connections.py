"""Many connections to one server without the cost of one large pool.

    connections = Connections({"content-type": "application/json"})
    async with connections.one() as client:
        response = await client.post(url, content=data)

A pool of httpx looks at each of its connections for each of its connections whenever a request
begins or ends: with 64 of them that is 15 ms of CPU a request. Here every client has one
connection, and the one that was used last is used first.

`read_body` reads a reply up to a limit that also holds for what it unpacks to.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from burnish.lm.failures import BadReply, ForeignReply

if TYPE_CHECKING:
    import ssl

    import httpx


class Connections:
    """HTTP clients of one connection each, as many as were ever needed at once."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = {"accept-encoding": "gzip", **headers}
        self._free: list[httpx.AsyncClient] = []
        self._all: list[httpx.AsyncClient] = []
        self._trust: ssl.SSLContext | None = None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses meanwhile."""
        client = self._free.pop() if self._free else self._new()
        try:
            yield client
        finally:
            if not client.is_closed:
                self._free.append(client)

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        clients, self._all, self._free = self._all, [], []
        for client in clients:
            await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        import httpx

        if self._trust is None:  # reading the certificates takes longer than many requests
            self._trust = httpx.create_ssl_context()
        # The fleet's deadline covers the whole attempt; httpx's own would only cover one read.
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        client = httpx.AsyncClient(
            headers=self._headers, timeout=None, limits=limits, verify=self._trust
        )
        self._all.append(client)
        return client


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
