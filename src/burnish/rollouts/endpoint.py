"""An OpenAI-compatible address on this machine, behind which a step's own model answers.

    async with the_endpoint(episode) as (base_url, key):
        ...                                  # any client: OpenAI(base_url=base_url, api_key=key)

| request                   | reply                                                            |
|---------------------------|------------------------------------------------------------------|
| POST /v1/chat/completions | a reply, or with `stream` the same as server-sent events         |
| GET /v1/models            | the model's name                                                 |

One server for all episodes of an event loop, on a free port of 127.0.0.1, for as long as there are
any. A key is an episode: it is drawn at random, only its hash is kept, and it is worth nothing once
the episode is over. Errors have the protocol's shape; the codes are such that clients do not try
again in vain.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from burnish.errors import UserError
from burnish.rollouts.chat_wire import (
    BadRequest,
    completion_body,
    error_body,
    models_body,
    read_request,
    stream_body,
)
from burnish.rollouts.episode import Episode
from burnish.seeds import digest
from burnish.web.asgi import Refused, bearer, json_body, while_connected
from burnish.web.request_checks import foreign, malformed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from burnish.web.server import LoopServer

MOST_BYTES = 16 << 20
"""Of a request's body."""
PATHS = "/v1/chat/completions, /v1/models"


class Address(NamedTuple):
    """What a program needs to reach the model."""

    base_url: str
    key: str


@asynccontextmanager
async def the_endpoint(episode: Episode) -> AsyncIterator[Address]:
    """The address under which an episode's requests are answered while inside."""
    loop = asyncio.get_running_loop()
    endpoint = _endpoints.get(loop)
    if endpoint is None:
        endpoint = _endpoints[loop] = Endpoint()
    key = secrets.token_urlsafe(24)
    endpoint.episodes[_hash(key)] = episode
    try:
        yield Address(f"{await endpoint.start()}/v1", key)
    finally:
        del endpoint.episodes[_hash(key)]
        episode.close()
        if not endpoint.episodes:
            _endpoints.pop(loop, None)
            endpoint.stop()


class Endpoint:
    """The server of one event loop, and the episodes that it serves, by the hash of their keys."""

    def __init__(self) -> None:
        self.episodes: dict[str, Episode] = {}
        self._server: LoopServer | None = None
        self._starting = asyncio.Lock()  # invariant: one server is started

    async def start(self) -> str:
        """The address, once the server answers."""
        try:
            from burnish.web.server import Bounds, LoopServer
        except ModuleNotFoundError as error:
            raise UserError(
                f"rollout.kind 'agent' needs the package '{error.name}'; install it: "
                "pip install 'burnish[serve]'"
            ) from error
        async with self._starting:
            if self._server is None:
                server = LoopServer(self, Bounds(connections=4096))
                await server.start()
                self._server = server
        return self._server.address

    def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: one request."""
        from starlette.requests import ClientDisconnect, Request

        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            if why := malformed(scope):
                raise Refused(400, why)
            if why := foreign(scope):
                raise Refused(403, why)
            reply = await self._reply(Request(scope, receive))
        except Refused as error:
            reply = _problem(error.code, str(error), "invalid_request")
        except BadRequest as error:
            reply = _problem(400, str(error), error.code)
        except ClientDisconnect:
            reply = _problem(400, "the client hung up.", "invalid_request")
        except Exception:  # boundary: the episode has kept the error and fails with it
            # 400, so that clients do not ask again: the episode is over.
            reply = _problem(400, "the model failed; the run says why.", "model_failed")
        await reply(scope, receive, send)

    async def _reply(self, request: Request) -> Response:
        episode = self.episodes.get(_hash(bearer(request)))
        if episode is None:
            raise Refused(401, "the key is missing, wrong, or its episode is over.")
        method, path = request.method, request.scope["path"].rstrip("/")
        name = episode.players.lm.name
        if method == "GET" and path == "/v1/models":
            return _response(models_body(name))
        if method != "POST" or path != "/v1/chat/completions":
            raise Refused(404, f"{method[:20]} {path[:60]}: expected {PATHS}.")
        try:
            asked = read_request(await json_body(request, MOST_BYTES))
        except (BadRequest, Refused) as error:
            episode.refuse(error)
            raise
        replies = await while_connected(request, lambda: episode.answer(asked))
        id_ = f"chatcmpl-{digest(episode.task.id, str(episode.requests), replies[0].text)}"
        if asked.is_stream:
            body = stream_body(asked, name, id_, replies)
            return _response(body, kind="text/event-stream; charset=utf-8")
        return _response(completion_body(asked, name, id_, replies))


_endpoints: dict[asyncio.AbstractEventLoop, Endpoint] = {}


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _problem(code: int, message: str, what: str) -> Response:
    kind = "authentication_error" if code == 401 else "invalid_request_error"
    reply = _response(error_body(message, kind, what), code)
    if code == 401:
        reply.headers["www-authenticate"] = "Bearer"
    return reply


def _response(body: bytes, code: int = 200, kind: str = "application/json") -> Response:
    from starlette.responses import Response

    return Response(body, code, media_type=kind)
