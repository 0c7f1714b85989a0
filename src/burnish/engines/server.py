"""Any scorer over HTTP: one task, a batch, or a job that is fetched later.

    serve(scorer, host="127.0.0.1", port=8321)          # until Ctrl-C or SIGTERM
    app = create_app(scorer, ServeSettings(), token="...")      # an ASGI app, for your own server

| request           | body                    | reply                                            |
|-------------------|-------------------------|--------------------------------------------------|
| GET /health       |                         | `{"status": "ok"}`, without a token              |
| GET /about        |                         | name, scope, needs and fingerprint of the scorer |
| POST /score       | `{task, responses}`     | `{fingerprint, rewards}`                         |
| POST /score_batch | `{items: [...]}`        | `{fingerprint, results}`, in order               |
| POST /jobs        | `{items: [...]}`        | 202 and `{id, state, done, total, results}`      |
| GET /jobs/ID      |                         | the same; `results` once it is done              |
| DELETE /jobs/ID   |                         | 204; a running job is stopped                    |

A request that is not whole in time is closed with 408. Without a token, one that another site's page
sent or that calls this machine by another name is refused (403).

Errors are `{"error": "one line", "kind": "user" | "reward" | "busy" | "server"}`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from burnish.arguments import as_function, as_text, as_whole, refused
from burnish.engines.messages import About, BatchBody, ScoreBody, read, reward_body
from burnish.engines.reward_service import Busy, RewardService, ServeSettings, problem_kind
from burnish.errors import BurnishError, UserError
from burnish.rewards.scorer import Scorer
from burnish.web.asgi import Refused, bearer, is_same, json_body, while_connected
from burnish.web.request_checks import foreign, is_loopback, malformed

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["ServeSettings", "create_app", "serve"]

logger = logging.getLogger(__name__)

PORT = 8321
Handler = Callable[["Request"], Awaitable["Response"]]


def create_app(
    scorer: Scorer, settings: ServeSettings | None = None, *, token: str = ""
) -> Starlette:
    """The server as an ASGI app; with a token, every request but `/health` must carry it.

    Without a token it answers only requests of this machine: a loopback `Host`, no other site's
    page. An app of yours that is reached by another name needs a token.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Route

    service = RewardService(scorer, settings or ServeSettings())
    endpoints = _Endpoints(service)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            service.group = group
            yield
            service.group = None
            group.cancel_scope.cancel()

    def route(path: str, handler: Handler, method: str, secret: str = token) -> Route:
        return Route(path, _answered(handler, secret), methods=[method])

    app = Starlette(
        lifespan=lifespan,
        middleware=[Middleware(_Guard, is_open=not token)],
        routes=[
            route("/health", endpoints.health, "GET", ""),
            route("/about", endpoints.about, "GET"),
            route("/score", endpoints.score, "POST"),
            route("/score_batch", endpoints.score_batch, "POST"),
            route("/jobs", endpoints.begin_job, "POST"),
            route("/jobs/{name}", endpoints.show_job, "GET"),
            route("/jobs/{name}", endpoints.drop_job, "DELETE"),
        ],
        exception_handlers={404: _no_such_path, 405: _no_such_path},
    )
    app.router.redirect_slashes = False
    return app


class _Guard:
    """Refuses what no route should see, before any route looks at it."""

    def __init__(self, app: ASGIApp, is_open: bool) -> None:
        self.app, self.is_open = app, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            if why := malformed(scope):
                await _problem(400, why, "user")(scope, receive, send)
                return
            if self.is_open and (why := foreign(scope)):
                await _problem(403, why, "user")(scope, receive, send)
                return
        await self.app(scope, receive, send)


class _Endpoints:
    """One method for each request."""

    def __init__(self, service: RewardService) -> None:
        self.service = service

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def about(self, request: Request) -> Response:
        from burnish import __version__

        scorer = self.service.scorer
        needs = tuple(sorted(scorer.needs))
        return _json(About(scorer.name, scorer.scope, needs, self.service.fingerprint, __version__))

    async def score(self, request: Request) -> Response:
        body = read(await self._body(request), ScoreBody, "the body")
        task, responses = body.parts()
        rewards = await while_connected(request, lambda: self.service.score(task, responses))
        bodies = [reward_body(reward) for reward in rewards]
        return _json({"fingerprint": self.service.fingerprint, "rewards": bodies})

    async def score_batch(self, request: Request) -> Response:
        items = read(await self._body(request), BatchBody, "the body").items
        results = await while_connected(request, lambda: self.service.batch(items))
        return _json({"fingerprint": self.service.fingerprint, "results": results})

    async def begin_job(self, request: Request) -> Response:
        items = read(await self._body(request), BatchBody, "the body").items
        return _json(self.service.begin(items).body(), 202)

    async def show_job(self, request: Request) -> Response:
        work = self.service.job(request.path_params["name"])
        return _json(work.body()) if work else _no_job()

    async def drop_job(self, request: Request) -> Response:
        from starlette.responses import Response

        work = self.service.job(request.path_params["name"])
        if work is None:
            return _no_job()
        self.service.cancel(work)
        return Response(status_code=204)

    async def _body(self, request: Request) -> bytes:
        """The request's JSON, not a byte longer than the settings allow."""
        return await json_body(
            request, self.service.settings.max_body_bytes, "send smaller batches."
        )


def _answered(handler: Handler, token: str) -> Handler:
    """The handler behind the token, its errors as one line with a code."""
    from starlette.requests import ClientDisconnect

    async def answer(request: Request) -> Response:
        try:
            if token and not is_same(bearer(request), token):
                raise Refused(401, "the token is missing or wrong; send Authorization: Bearer.")
            return await handler(request)
        except BurnishError as error:
            return _problem(_code(error), str(error), problem_kind(error))
        except ClientDisconnect:
            return _problem(400, "the client hung up.", "user")
        except Exception:  # boundary: a bug ends one request; the log has the traceback
            logger.exception("%s %s failed", request.method, request.url.path)
            return _problem(500, "the server failed; its log says why.", "server")

    return answer


def _code(error: BurnishError) -> int:
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, Busy):
        return 503
    return 422 if isinstance(error, UserError) else 500


async def _no_such_path(request: Request, error: Exception) -> Response:
    code = getattr(error, "status_code", 404)
    paths = "/health, /about, /score, /score_batch, /jobs, /jobs/ID"
    where = f"{request.method[:20]} {request.scope['path'][:60]}"
    return _problem(code, f"{where}: expected {paths}.", "user")


def _no_job() -> Response:
    return _problem(404, "no such job: never begun, deleted, or its time is over.", "user")


def _problem(code: int, message: str, kind: str) -> Response:
    reply = _json({"error": " ".join(message.split()), "kind": kind}, code)
    if kind == "busy":
        reply.headers["retry-after"] = "1"
    if code == 400:
        reply.headers["connection"] = "close"
    if code == 401:
        reply.headers["www-authenticate"] = "Bearer"
    return reply


def _json(value: Any, code: int = 200) -> Response:
    from starlette.responses import Response

    data = msgspec.json.encode(value)
    return Response(data, code, media_type="application/json")


def _check_arguments(
    scorer: object, host: object, port: object, token: object, settings: object, ready: object
) -> None:
    """Refuse what a caller in Python mixed up; the command line has checked its own."""
    if not isinstance(scorer, Scorer):
        raise refused("scorer", scorer, "a scorer, such as burnish.rewards.from_function(f)")
    as_text("host", host)
    as_whole("port", port, low=0, high=65535)
    as_text("token", token)
    if settings is not None and not isinstance(settings, ServeSettings):
        raise refused("settings", settings, "ServeSettings or None")
    if ready is not None:
        as_function("ready", ready)


def serve(
    scorer: Scorer,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str = "",
    settings: ServeSettings | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; requests that run then may finish. Port 0 is any free one.

    `ready` is called with the address once it is bound. An address that others can reach needs a
    token.
    """
    try:
        from burnish.web.server import Bounds, bound_socket, make_server
    except ModuleNotFoundError as error:
        raise UserError(
            f"serving needs the package '{error.name}'; install it: pip install 'burnish[serve]'"
        ) from error
    _check_arguments(scorer, host, port, token, settings, ready)
    if not token and not is_loopback(host):
        raise UserError(
            f"host {host} can be reached from other machines, and there is no token; expected one "
            "(--token-env NAME) or a loopback host such as 127.0.0.1."
        )
    chosen = settings or ServeSettings()
    with bound_socket(host, port) as bound:
        app = create_app(scorer, chosen, token=token)
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{bound.getsockname()[1]}")
        header_s = min(10.0, chosen.request_s)
        bounds = Bounds(chosen.max_connections, header_s, chosen.request_s)
        server = make_server(app, bounds, stop_s=chosen.stop_s, lifespan=True)
        server.run(sockets=[bound])
