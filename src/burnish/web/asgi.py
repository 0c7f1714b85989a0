"""What the servers on this machine share in reading a request: its body, its token, its end.

body = await json_body(request, most=1 << 20)
result = await while_connected(request, lambda: work(body))
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import anyio

from burnish.errors import UserError

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")


class Refused(UserError):
    """A client error with its HTTP status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def json_body(request: Request, most: int, advice: str = "send less at once.") -> bytes:
    """The request's JSON, not a byte longer than `most`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A web page may send other types to a loopback port without asking; not this one.
        raise Refused(415, f"content-type is '{kind[:60]}'; expected application/json.")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise Refused(415, f"content-encoding is '{packed[:60]}'; send the JSON as it is.")
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
