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
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Meta, Raw, Struct

from burnish.boundary import PositiveInt, Seconds, Settings, public
from burnish.engines.messages import About, BatchBody, ScoreBody, read, reward_body
from burnish.errors import BoundaryError, BurnishError, RewardError, UserError
from burnish.lm.base import JsonObject
from burnish.records import Response, Reward, Task
from burnish.rewards.scorer import Scorer, checked, fingerprint, gather
from burnish.web.asgi import (
    Refused,
    bearer,
    foreign,
    is_loopback,
    is_same,
    json_body,
    malformed,
    while_connected,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response as HttpResponse
    from starlette.types import ASGIApp, Receive, Scope, Send


logger = logging.getLogger(__name__)


class ServeSettings(Settings, frozen=True, kw_only=True):
    """How much a reward server takes on."""

    concurrency: PositiveInt = 16
    """Tasks that are scored at the same time, over all requests and jobs."""
    waiting: PositiveInt = 1024
    """Tasks that may be under way or wait for a slot; beyond that new ones are told to come back
    (503), unless there are none."""
    deadline_s: Seconds = 120.0
    """Wall clock of one task's scoring; its rewards are then `timeout`."""
    max_connections: PositiveInt = 512
    """Open at the same time; beyond that the one that has waited longest for its client is closed."""
    request_s: Seconds = 30.0
    """How long a client may take to send its whole request; its headers, 10 s."""


MOST_BYTES = 8 << 20
"""Of one request."""
MOST_ITEMS = 1024
"""Tasks in one batch or job."""
MOST_RESPONSES = 256
"""Responses to one task."""
MOST_JOBS = 64
"""Jobs that are kept, running or done."""
KEEP_S = 3600.0
"""How long a finished job's results wait to be fetched."""
STOP_S = 30.0
"""How long running requests may go on after the server was told to stop."""


class Busy(BoundaryError):
    """More work is waiting than the server takes on."""


class JobState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class JobBody(Struct):
    """What `GET /jobs/{id}` says."""

    id: str
    total: int
    done: int = 0
    state: JobState = JobState.RUNNING
    results: list[JsonObject] | None = None


class Work:
    """One job: its items' results, and how far it is."""

    def __init__(self, name: str, total: int) -> None:
        self.body = JobBody(name, total)
        self.ended = math.inf
        self.scope = anyio.CancelScope()


class RewardService:
    """A scorer with slots."""

    def __init__(self, scorer: Scorer, settings: ServeSettings) -> None:
        self.scorer, self.settings = scorer, settings
        own = getattr(scorer, "fingerprint", None)
        self.fingerprint = fingerprint(scorer) if isinstance(own, str) else ""
        self._slots = anyio.Semaphore(settings.concurrency)
        self._waiting = 0
        self._jobs: dict[str, Work] = {}
        self.group: TaskGroup | None = None
        """Where jobs run; set while the server is up."""

    # --- one method for each request

    async def health(self, request: Request) -> HttpResponse:
        return as_json({"status": "ok"})

    async def about(self, request: Request) -> HttpResponse:
        from burnish import __version__

        scorer = self.scorer
        needs = tuple(sorted(scorer.needs))
        return as_json(About(scorer.name, scorer.scope, needs, self.fingerprint, __version__))

    async def score_one(self, request: Request) -> HttpResponse:
        task, responses = read(await self._body(request), ScoreBody, "the body").parts()

        async def score() -> list[Reward]:
            self._admit(1)
            try:
                return await self._score(task, responses)
            finally:
                self._waiting -= 1

        bodies = [reward_body(reward) for reward in await while_connected(request, score)]
        return as_json({"fingerprint": self.fingerprint, "rewards": bodies})

    async def score_batch(self, request: Request) -> HttpResponse:
        items = read(await self._body(request), BatchBody, "the body").items

        async def score() -> list[JsonObject]:
            self._admit(len(items))
            return await self._score_all(items, None)

        results = await while_connected(request, score)
        return as_json({"fingerprint": self.fingerprint, "results": results})

    async def begin_job(self, request: Request) -> HttpResponse:
        items = read(await self._body(request), BatchBody, "the body").items
        self._forget()
        if self.group is None or len(self._jobs) >= MOST_JOBS:
            raise Busy(f"{len(self._jobs)} jobs are kept already; delete some (DELETE /jobs/ID).")
        self._admit(len(items))
        work = Work(secrets.token_urlsafe(16), len(items))
        self._jobs[work.body.id] = work
        self.group.start_soon(self._run, work, items)
        return as_json(work.body, 202)

    async def show_job(self, request: Request) -> HttpResponse:
        self._forget()
        work = self._jobs.get(request.path_params["name"])
        return as_json(work.body) if work else _no_job()

    async def drop_job(self, request: Request) -> HttpResponse:
        from starlette.responses import Response as HttpResponse

        self._forget()
        work = self._jobs.pop(request.path_params["name"], None)
        if work is None:
            return _no_job()
        work.scope.cancel()
        return HttpResponse(status_code=204)

    # --- how they are answered

    async def _body(self, request: Request) -> bytes:
        return await json_body(request, MOST_BYTES, "send smaller batches.")

    def _admit(self, items: int) -> None:
        if items > MOST_ITEMS:
            raise UserError(f"items has {items} entries; expected at most {MOST_ITEMS}.")
        if self._waiting and self._waiting + items > self.settings.waiting:
            raise Busy(f"{self._waiting} tasks are waiting already; come back later.")
        self._waiting += items

    async def _score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        if (count := len(responses)) > MOST_RESPONSES:
            raise UserError(
                f"task {task.id}: {count} responses; expected at most {MOST_RESPONSES}."
            )
        async with self._slots:
            deadline_s = self.settings.deadline_s
            return await checked(self.scorer, task, responses, deadline_s=deadline_s)

    async def _score_all(self, items: Sequence[Raw], work: Work | None) -> list[JsonObject]:
        left = len(items)

        async def one(item: Raw) -> JsonObject:
            nonlocal left
            try:
                return await self._result(item)
            finally:
                left -= 1
                self._waiting -= 1
                if work is not None:
                    work.body.done += 1

        try:
            calls = [partial(one, item) for item in items]
            return await gather(calls, limit=self.settings.concurrency)
        finally:
            self._waiting -= left

    async def _result(self, item: Raw) -> JsonObject:
        try:
            rewards = await self._score(*read(item, ScoreBody, "the item").parts())
        except BurnishError as error:
            return {"error": str(error), "kind": _problem_of(error)[1]}
        except Exception:  # boundary: a bug costs the item it met; the log has the traceback
            logger.exception("scoring an item failed")
            return {"error": "the server failed; its log says why.", "kind": "server"}
        return {"rewards": [reward_body(reward) for reward in rewards]}

    async def _run(self, work: Work, items: Sequence[Raw]) -> None:
        with work.scope:
            work.body.results = await self._score_all(items, work)
        is_done = work.body.results is not None
        work.body.state = JobState.DONE if is_done else JobState.CANCELLED
        work.ended = time.monotonic()

    def _forget(self) -> None:
        oldest = time.monotonic() - KEEP_S
        for name in [name for name, work in self._jobs.items() if work.ended < oldest]:
            del self._jobs[name]


def _problem_of(error: BurnishError) -> tuple[int, str]:
    """The HTTP code, and who has to act: user, reward (the scorer broke its contract), busy, server."""
    match error:
        case Refused():
            return error.code, "user"
        case UserError():
            return 422, "user"
        case Busy():
            return 503, "busy"
        case RewardError():
            return 500, "reward"
    return 500, "server"


PORT = 8321
Handler = Callable[["Request"], Awaitable["HttpResponse"]]


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

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            service.group = group
            yield
            service.group = None
            group.cancel_scope.cancel()

    def route(path: str, handler: Handler, method: str, secret: str = token) -> Route:
        return Route(path, answered(handler, secret), methods=[method])

    app = Starlette(
        lifespan=lifespan,
        middleware=[Middleware(Guard, is_open=not token)],
        routes=[
            route("/health", service.health, "GET", ""),
            route("/about", service.about, "GET"),
            route("/score", service.score_one, "POST"),
            route("/score_batch", service.score_batch, "POST"),
            route("/jobs", service.begin_job, "POST"),
            route("/jobs/{name}", service.show_job, "GET"),
            route("/jobs/{name}", service.drop_job, "DELETE"),
        ],
        exception_handlers={404: _no_such_path, 405: _no_such_path},
    )
    app.router.redirect_slashes = False
    return app


class Guard:
    def __init__(self, app: ASGIApp, is_open: bool) -> None:
        self.app, self.is_open = app, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        app = self.app
        if scope["type"] == "http":
            bad, elsewhere = malformed(scope), foreign(scope) if self.is_open else ""
            if bad or elsewhere:
                app = _problem(400 if bad else 403, bad or elsewhere, "user")
        await app(scope, receive, send)


def answered(handler: Handler, token: str) -> Handler:
    """The handler behind the token, its errors as one line with a code."""
    from starlette.requests import ClientDisconnect

    async def answer(request: Request) -> HttpResponse:
        try:
            if token and not is_same(bearer(request), token):
                raise Refused(401, "the token is missing or wrong; send Authorization: Bearer.")
            return await handler(request)
        except BurnishError as error:
            code, kind = _problem_of(error)
            return _problem(code, str(error), kind)
        except ClientDisconnect:
            return _problem(400, "the client hung up.", "user")
        except Exception:  # boundary: a bug ends one request; the log has the traceback
            logger.exception("%s %s failed", request.method, request.url.path)
            return _problem(500, "the server failed; its log says why.", "server")

    return answer


async def _no_such_path(request: Request, error: Exception) -> HttpResponse:
    code = getattr(error, "status_code", 404)
    paths = "/health, /about, /score, /score_batch, /jobs, /jobs/ID"
    where = f"{request.method[:20]} {request.scope['path'][:60]}"
    return _problem(code, f"{where}: expected {paths}.", "user")


def _no_job() -> HttpResponse:
    return _problem(404, "no such job: never begun, deleted, or its time is over.", "user")


def _problem(code: int, message: str, kind: str) -> HttpResponse:
    reply = as_json({"error": " ".join(message.split()), "kind": kind}, code)
    if kind == "busy":
        reply.headers["retry-after"] = "1"
    if code == 400:
        reply.headers["connection"] = "close"
    if code == 401:
        reply.headers["www-authenticate"] = "Bearer"
    return reply


def as_json(value: Any, code: int = 200) -> HttpResponse:
    from starlette.responses import Response as HttpResponse

    data = msgspec.json.encode(value)
    return HttpResponse(data, code, media_type="application/json")


@public
def serve(
    scorer: Scorer,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Meta(ge=0, le=65535)] = PORT,
    token: str = "",
    settings: ServeSettings | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; requests that run then may finish. Port 0 is any free one.

    `ready` is called with the address once it is bound. An address that others can reach needs a
    token.
    """
    chosen = settings or ServeSettings()
    app = partial(create_app, scorer, chosen, token=token)
    serve_app(app, chosen, host=host, port=port, token=token, ready=ready)


def serve_app(
    app: Callable[[], Starlette],
    settings: ServeSettings,
    *,
    host: str,
    port: int,
    token: str,
    ready: Callable[[str], None] | None,
) -> None:
    """Serve an app until Ctrl-C or SIGTERM; `ready` gets its address once that is bound."""
    try:
        from burnish.web.server import Bounds, bound_socket, make_server
    except ModuleNotFoundError as error:
        raise UserError(
            f"serving needs the package '{error.name}'; install it: pip install 'burnish[serve]'"
        ) from error
    if not token and not is_loopback(host):
        raise UserError(
            f"host {host} can be reached by others; expected a token (--token-env NAME) or 127.0.0.1"
        )
    with bound_socket(host, port) as bound:
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{bound.getsockname()[1]}")
        header_s = min(10.0, settings.request_s)
        bounds = Bounds(settings.max_connections, header_s, settings.request_s)
        server = make_server(app(), bounds, stop_s=STOP_S, lifespan=True)
        server.run(sockets=[bound])
