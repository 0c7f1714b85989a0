"""Many connections to one server without the cost of one large pool.

    connections = Connections({"content-type": "application/json"})
    async with connections.one() as client:
        response = await client.post(url, content=data)

A pool of httpx looks at each of its connections for each of its connections whenever a request
begins or ends: with 64 of them that is 15 ms of CPU a request. Here every client has one
connection, and the one that was used last is used first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    import httpx


class Connections:
    """HTTP clients of one connection each, as many as were ever needed at once."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)
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
