"""HTTP connections to one server: reused, closed with their event loop, replies of bounded size."""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from anyio.lowlevel import RunVar

from burnish.errors import UserError
from burnish.lm.failures import BadReply, ForeignReply

if TYPE_CHECKING:
    import ssl

    import httpx

_serial = count()


class _Clients(NamedTuple):
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
            import httpx

            if self._trust is None:  # reading the certificates takes longer than many requests
                self._trust = httpx.create_ssl_context()
            # The pool's deadline covers the whole attempt; httpx's own would only cover one read.
            limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
            made = httpx.AsyncClient(
                headers=self._headers, timeout=None, limits=limits, verify=self._trust
            )
            clients.all.append(made)
            clients.free.append(made)
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


def checked_url(what: str, url: str, odd: str = " ?#") -> str:
    """The address of a server, without a slash at its end and `odd` characters."""
    import httpx

    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # urlsplit overlooks line ends; httpx is stricter about hosts.
        is_good = is_good and url.isprintable() and not set(odd) & set(url)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        is_good = False
    if not is_good:
        raise UserError(
            f"{what} is {url.partition('?')[0].rpartition('@')[2]!r}; expected http://host:port/v1 or "
            "https://..., without a query"
        )
    return url.rstrip("/")


def shown_address(url: str) -> str:
    """The address for people: without a user name or password that it may carry."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def key_of(what: str, key: str | None, variable: str | None) -> str:
    """A key, given or in the environment; it goes into one header."""
    is_named = key is None and bool(variable)
    found = (os.environ.get(str(variable), "") if is_named else key or "").strip()
    is_plain = found.isascii() and found.isprintable() and " " not in found
    if not is_plain or (is_named and not found):
        where = f"the environment has no {variable}" if is_named else "the key is odd"
        raise UserError(f"{what}: {where}; expected ASCII without spaces")
    return found


async def read_body(response: httpx.Response, where: str, most: int) -> bytes:
    """The body of a reply, unpacked; one that unpacks to more than `most` bytes is given up early.

    httpx would unpack a whole part at once, and packings of packings in a row: a hundred bytes
    then become gigabytes.
    """
    packing = response.headers.get("content-encoding", "").strip().lower()
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if "gzip" in packing else None
    parts, size = [], 0
    try:
        if packing not in ("", "identity", "gzip", "x-gzip"):
            raise zlib.error(repr(packing[:40]))
        async for raw in response.aiter_raw():
            part = raw if unpack is None else unpack.decompress(raw, most - size + 1)
            size += len(part)
            if size > most:
                raise BadReply(f"{where}: the reply is longer than {most} bytes")
            parts.append(part)
        if unpack is not None and not unpack.eof and parts:
            raise zlib.error("it is cut off")
    except zlib.error as error:
        raise ForeignReply(f"{where}: the reply's content encoding is broken: {error}") from error
    return b"".join(parts)
