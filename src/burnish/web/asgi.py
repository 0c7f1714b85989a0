"""What the servers on this machine share in reading a request: its body, its token, its end."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import anyio

from burnish.errors import UserError

if TYPE_CHECKING:
    from starlette.requests import Request


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII)

Scope = Mapping[str, Any]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_host(host: str) -> bool:
    """Whether a `Host` header is a loopback address or `localhost`, with or without a port.

    A name that merely begins or ends like one is another name; so is what is no host at all.
    """
    found = _HOST.fullmatch(host)
    if found is None or int(found[2] or 0) > 65535:
        return False
    name = found[1].lower().strip("[]")
    return is_loopback(name) and found[1].startswith("[") == (":" in name)


def foreign(scope: Scope) -> str:
    """Why a request comes from elsewhere; empty where it does not."""
    hosts = _values(scope, b"host")
    if len(hosts) != 1 or not is_own_host(hosts[0]):
        return f"this server answers to {', '.join(LOOPBACK)} only, not to another name."
    if not all(_is_own_origin(origin, hosts[0]) for origin in _values(scope, b"origin")):
        return "another site asks for this; refused."
    # A local page on another port is `same-site`, and as foreign as any.
    if not set(_values(scope, b"sec-fetch-site")) <= {"none", "same-origin"}:
        return "another site asks for this; refused. Open the address by hand."
    return ""


def malformed(scope: Scope) -> str:
    """Why a request could be read in two ways; empty where it cannot.

    An absolute target names a host of its own beside the `Host` header, and a length beside a
    chunked body lets a proxy and this server disagree on where the next request begins.
    """
    if not scope.get("raw_path", scope["path"].encode()).startswith(b"/"):
        return "the request's target is no path; expected one that begins with a slash."
    if _values(scope, b"content-length") and _values(scope, b"transfer-encoding"):
        return "the request has both content-length and transfer-encoding; expected one of them."
    return ""


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _is_own_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.netloc.lower() == host.lower()


T = TypeVar("T")


class Refused(UserError):
    """A client error with its HTTP status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def json_body(request: Request, most: int, advice: str = "send less at once.") -> bytes:
    """The request's JSON, not a byte longer than `most`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    # A web page may send other types to a loopback port without asking; not this one.
    if kind != "application/json" or packed not in ("", "identity"):
        told = f"content-type is '{kind[:60]}', content-encoding '{packed[:60]}'"
        raise Refused(415, f"{told}; expected application/json as it is.")
    length = request.headers.get("content-length", "0")
    parts, size = [], int(length) if length.isdigit() else 0
    if size <= most:
        size = 0
        async for part in request.stream():
            size += len(part)
            parts.append(part)
            if size > most:
                break
    if size > most:
        raise Refused(413, f"the body has more than {most} bytes; {advice}")
    return b"".join(parts)


async def while_connected(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """The work's result; a client that hangs up ends it, so that nothing is done in vain."""
    results: list[T] = []
    errors: list[Exception] = []

    async def watch(scope: anyio.CancelScope) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, group.cancel_scope)
        try:
            results.append(await work())
        except Exception as error:  # boundary: carried out of the task group unwrapped
            errors.append(error)
        group.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise Refused(499, "the client hung up.")
    return results[0]


def bearer(request: Request) -> str:
    """The token that a request carries; empty without one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def is_same(token: str, other: str) -> bool:
    """Whether two tokens are the same, in a time that says nothing about them."""
    return hmac.compare_digest(token.encode(), other.encode())
