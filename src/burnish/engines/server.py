"""Any scorer over HTTP: one task, a batch, or a job that is fetched later.

    serve(scorer, host="127.0.0.1", port=8321)          # until Ctrl-C or SIGTERM
    app = create_app(scorer, ServeSettings(), token="...")      # an ASGI app, for your own server

`docs/serving.md` lists requests and replies. A request that is not whole in time is closed with 408.
Without a token, one that another site's page sent or that calls this machine by another name is
refused (403). Errors are `{"error": "one line", "kind": "user" | "reward" | "busy" | "server"}`.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Meta, Raw

from burnish.boundary import PositiveInt, Seconds, Settings, public
from burnish.engines.messages import About, BatchBody, JobBody, ScoreBody, read, reward_body
from burnish.errors import BoundaryError, BurnishError, RewardError, UserError
from burnish.lm.base import JsonObject
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
    from starlette.types import Receive, Scope, Send

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
PORT = 8321
PATHS = ("/health", "/about", "/score", "/score_batch", "/jobs")
HEADERS = {
    400: {"connection": "close"},
    401: {"www-authenticate": "Bearer"},
    503: {"retry-after": "1"},
}
"""Beside an error, by its code."""
FAILED = "the server failed; its log says why."
Work = Callable[[], Awaitable[list[JsonObject]]]
T = TypeVar("T")


class Busy(BoundaryError):
    """More work is waiting than the server takes on."""


class Job:
    """What `GET /jobs/ID` says, until when it is kept, and how it is stopped."""

    def __init__(self, total: int) -> None:
        self.body = JobBody(secrets.token_urlsafe(16), total)
        self.ended, self.scope = math.inf, anyio.CancelScope()


class JsonService(ABC):
    """An ASGI app without a lifespan: who may ask, and every error as one line with a code."""

    def __init__(self, token: str) -> None:
        self.token = token

    @abstractmethod
    async def answer(self, request: Request) -> HttpResponse:
        """The reply to a request that may ask."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import ClientDisconnect, Request

        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            reply = await self._reply(Request(scope, receive))
        except BurnishError as error:
            code, kind = _problem_of(error)
            reply = _problem(code, str(error), kind)
        except ClientDisconnect:
            reply = _problem(400, "the client hung up.", "user")
        except Exception:  # boundary: a bug ends one request; the log has the traceback
            logger.exception("%s %s failed", scope["method"], scope["path"])
            reply = _problem(500, FAILED, "server")
        await reply(scope, receive, send)

    async def _reply(self, request: Request) -> HttpResponse:
        if bad := malformed(request.scope):
            raise Refused(400, bad)
        if not self.token and (elsewhere := foreign(request.scope)):
            raise Refused(403, elsewhere)
        if (request.method, request.scope["path"]) == ("GET", "/health"):
            return as_json({"status": "ok"})
        if self.token and not is_same(bearer(request), self.token):
            raise Refused(401, "the token is missing or wrong; send Authorization: Bearer.")
        return await self.answer(request)


class RewardService(JsonService):
    """A scorer with slots."""

    def __init__(self, scorer: Scorer, settings: ServeSettings, token: str) -> None:
        super().__init__(token)
        self.scorer, self.settings = scorer, settings
        own = getattr(scorer, "fingerprint", None)
        self.fingerprint = fingerprint(scorer) if isinstance(own, str) else ""
        self._slots = anyio.Semaphore(settings.concurrency)
        self._waiting = 0
        self._jobs: dict[str, Job] = {}
        self.group: TaskGroup | None = None
        """Where jobs run; set while the server is up."""

    async def answer(self, request: Request) -> HttpResponse:
        """The reply of one route."""
        method, path = request.method, request.scope["path"]
        match method, *path.split("/")[1:]:
            case "GET", "about":
                return as_json(self._about())
            case "POST", "score":
                body = await self._read(request, ScoreBody)
                return await self._answer(request, "rewards", lambda: self._score_one(body))
            case "POST", "score_batch":
                items = (await self._read(request, BatchBody)).items
                return await self._answer(request, "results", lambda: self._score_all(items))
            case "POST", "jobs":
                return self._begin((await self._read(request, BatchBody)).items)
            case "GET", "jobs", name:
                return as_json(self._job(name).body)
            case "DELETE", "jobs", name:
                self._job(name).scope.cancel()
                del self._jobs[name]
                return as_json(None, 204)
        code = 405 if path in PATHS else 404
        raise Refused(code, f"{method[:20]} {path[:60]}: expected {', '.join(PATHS)}, /jobs/ID.")

    async def _answer(self, request: Request, name: str, work: Work) -> HttpResponse:
        found = await while_connected(request, work)
        return as_json({"fingerprint": self.fingerprint, name: found})

    async def _read(self, request: Request, kind: type[T]) -> T:
        return read(await json_body(request, MOST_BYTES, "send smaller batches."), kind, "the body")

    def _about(self) -> About:
        from burnish import __version__

        scorer, needs = self.scorer, tuple(sorted(self.scorer.needs))
        return About(scorer.name, scorer.scope, needs, self.fingerprint, __version__)

    # --- scoring

    def _admit(self, items: int) -> None:
        if items > MOST_ITEMS:
            raise UserError(f"items has {items} entries; expected at most {MOST_ITEMS}.")
        if self._waiting and self._waiting + items > self.settings.waiting:
            raise Busy(f"{self._waiting} tasks are waiting already; come back later.")
        self._waiting += items

    async def _score(self, body: ScoreBody) -> list[JsonObject]:
        task, responses = body.parts()
        if (count := len(responses)) > MOST_RESPONSES:
            raise UserError(
                f"task {task.id}: {count} responses; expected at most {MOST_RESPONSES}."
            )
        async with self._slots:
            deadline_s = self.settings.deadline_s
            rewards = await checked(self.scorer, task, responses, deadline_s=deadline_s)
        return [reward_body(reward) for reward in rewards]

    async def _score_one(self, body: ScoreBody) -> list[JsonObject]:
        self._admit(1)
        try:
            return await self._score(body)
        finally:
            self._waiting -= 1

    async def _score_all(self, items: Sequence[Raw], job: Job | None = None) -> list[JsonObject]:
        if job is None:
            self._admit(len(items))
        left = len(items)

        async def one(item: Raw) -> JsonObject:
            nonlocal left
            try:
                return await self._result(item)
            finally:
                left -= 1
                self._waiting -= 1
                if job is not None:
                    job.body.done += 1

        try:
            calls = [partial(one, item) for item in items]
            return await gather(calls, limit=self.settings.concurrency)
        finally:
            self._waiting -= left

    async def _result(self, item: Raw) -> JsonObject:
        try:
            return {"rewards": await self._score(read(item, ScoreBody, "the item"))}
        except BurnishError as error:
            return {"error": str(error), "kind": _problem_of(error)[1]}
        except Exception:  # boundary: a bug costs the item it met; the log has the traceback
            logger.exception("scoring an item failed")
            return {"error": FAILED, "kind": "server"}

    # --- jobs

    def _begin(self, items: Sequence[Raw]) -> HttpResponse:
        self._forget()
        if self.group is None or len(self._jobs) >= MOST_JOBS:
            raise Busy(f"{len(self._jobs)} jobs are kept already; delete some (DELETE /jobs/ID).")
        self._admit(len(items))  # here, so that the client is told
        job = Job(len(items))
        self._jobs[job.body.id] = job
        self.group.start_soon(self._run, job, items)
        return as_json(job.body, 202)

    async def _run(self, job: Job, items: Sequence[Raw]) -> None:
        with job.scope:
            job.body.results = await self._score_all(items, job)
            job.body.state = "done"
        job.ended = time.monotonic()

    def _job(self, name: str) -> Job:
        self._forget()
        if name not in self._jobs:
            raise Refused(404, "no such job: never begun, deleted, or its time is over.")
        return self._jobs[name]

    def _forget(self) -> None:
        oldest = time.monotonic() - KEEP_S
        self._jobs = {name: job for name, job in self._jobs.items() if job.ended >= oldest}


def _problem_of(error: BurnishError) -> tuple[int, str]:
    """The HTTP code, and who has to act: user, reward (the scorer broke its contract), busy, server."""
    if isinstance(error, UserError):
        return (error.code if isinstance(error, Refused) else 422), "user"
    if isinstance(error, Busy):
        return 503, "busy"
    return 500, "reward" if isinstance(error, RewardError) else "server"


def _problem(code: int, message: str, kind: str) -> HttpResponse:
    reply = as_json({"error": " ".join(message.split()), "kind": kind}, code)
    reply.headers.update(HEADERS.get(code, {}))
    return reply


def as_json(value: Any, code: int = 200) -> HttpResponse:
    from starlette.responses import Response as HttpResponse

    data = b"" if value is None else msgspec.json.encode(value)
    return HttpResponse(data, code, media_type="application/json")


def create_app(
    scorer: Scorer, settings: ServeSettings | None = None, *, token: str = ""
) -> Starlette:
    """The server as an ASGI app; with a token, every request but `/health` must carry it.

    Without a token it answers only requests of this machine: a loopback `Host`, no other site's
    page. An app of yours that is reached by another name needs a token.
    """
    from starlette.applications import Starlette
    from starlette.routing import Mount

    service = RewardService(scorer, settings or ServeSettings(), token)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            service.group = group
            yield
            service.group = None
            group.cancel_scope.cancel()

    return Starlette(lifespan=lifespan, routes=[Mount("/", service)])


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
