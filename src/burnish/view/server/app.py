"""The application: routes to answers, files of the front end, errors as one line.

app = make_app(Viewer(Runs(folder=Path("runs"))), token="...")
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from burnish.errors import BurnishError, StoreError, UserError
from burnish.media.kinds import media_type_of
from burnish.view.pages.runs import NotFound, TookTooLong
from burnish.view.server.routes import ENDPOINTS, At, Endpoint, Parameters, Viewer, media_of
from burnish.web.asgi import foreign, malformed
from burnish.web.server import Bounds, make_server

PARAMETER = "token"

HEADERS = {
    "content-security-policy": "; ".join(
        [
            "default-src 'self'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "object-src 'none'",
            "frame-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware that lets only the holder of the token through."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._token = token
        # Cookies know no ports: two viewers on one machine must not overwrite each other's.
        self.cookie = f"burnish_view_{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, sending)

    def _refusal(self, scope: Scope) -> Response | None:
        """What to answer instead, or None where the request may pass."""
        headers = Headers(scope=scope)
        if why := malformed(scope):
            return _refuse(scope, 400, why)
        if why := foreign(scope):
            return _refuse(scope, 403, why)
        if scope["method"] not in ("GET", "HEAD"):
            return _refuse(scope, 405, f"{scope['method']} is not allowed; the viewer only reads.")
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(pairs)
        if PARAMETER not in given:
            kind, _, bearer = headers.get("authorization", "").partition(" ")
            cookie = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
            if self._is_token(cookie) or (
                kind.lower() == "bearer" and self._is_token(bearer.strip())
            ):
                return None
            return _refuse(
                scope, 403, "no token; open the whole address that burnish view printed, once."
            )
        if not self._is_token(given[PARAMETER]):
            return _refuse(scope, 403, "wrong token; use the address that burnish view printed.")
        # The token goes into a cookie and out of the address.
        rest = urlencode([(name, value) for name, value in pairs if name != PARAMETER])
        # The leading slashes are made one: `//host` in a location would lead to another site.
        path = "/" + scope["raw_path"].decode("latin-1").split("?")[0].lstrip("/\\")
        response = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        response.set_cookie(
            self.cookie,
            self._token,
            httponly=True,
            samesite="strict",
            path="/",
            max_age=30 * 86_400,
        )
        return response

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _refuse(scope: Scope, status: int, line: str) -> Response:
    # Where a request's end is in doubt, nothing after it on the same connection is a request.
    headers = {"connection": "close"} if status == 400 else None
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": line}, status, headers)
    return PlainTextResponse(f"burnish view: {line}\n", status, headers)


BASE = "/api/v1"
STATIC = Path(__file__).parent.parent / "static"
WORKERS = 4
"""Requests that read at the same time; each holds a page of rows, not a run."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def make_app(viewer: Viewer, token: str) -> Starlette:
    """The web application over some runs, open to whoever has the token."""
    limiter = anyio.CapacityLimiter(WORKERS)
    # Only what is listed here is ever served.
    files = {
        path.relative_to(STATIC).as_posix(): path
        for path in STATIC.rglob("*")
        if path.is_file() and path.suffix in TYPES
    }

    def route(path: str, answer: Callable[..., Response], *about: Any) -> Route:
        """Answered in a worker thread."""

        async def handle(request: Request) -> Response:
            work = partial(answer, *about, request)
            return await anyio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)

        return Route(path, handle, methods=["GET"])

    routes = [route(BASE + one.path, _answer, viewer, one) for one in ENDPOINTS]
    routes += [
        route(f"{BASE}/runs/{{run}}/blobs/{{sha256}}", _media, viewer),
        route("/api/{rest:path}", _no_such_route),
        route("/static/{name:path}", _file, files),
        route("/favicon.ico", _file, files),
        # Any other address is a place within the page.
        route("/{rest:path}", lambda request: _served(request, files["index.html"])),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={HTTPException: _http_error, Exception: _bug},
    )


def _answer(viewer: Viewer, endpoint: Endpoint, request: Request) -> Response:
    """One answer; runs in a worker thread."""
    try:
        asked = Parameters(request.query_params, endpoint.known)
        body = msgspec.json.encode(endpoint.answer(At(viewer, asked, dict(request.path_params))))
    except BurnishError as error:
        return _failed(error)
    return _tagged(request, body, "application/json")


def _media(viewer: Viewer, request: Request) -> Response:
    """An image or a sound of a run, by its hash.

    Its type is the one that the bytes say, never one that was asked for, and nothing in it can
    run: it is not in the list of types otherwise, and its own policy allows nothing.
    """
    sha256 = request.path_params["sha256"]
    try:
        data = media_of(viewer.runs.find(request.path_params["run"]), sha256).bytes_of(sha256)
        kind = media_type_of(data)
        if kind is None:
            raise StoreError(f"{sha256[:12]} is no image or sound.")
    except BurnishError as error:
        return _failed(error)
    response = _part(_tagged(request, data, kind), request, data)
    response.headers["content-security-policy"] = "default-src 'none'; sandbox"
    response.headers["content-disposition"] = "inline"
    return response


def _part(whole: Response, request: Request, data: bytes) -> Response:
    """The bytes that a player asks for when somebody moves it to another place."""
    whole.headers["accept-ranges"] = "bytes"
    asked = re.fullmatch(r"bytes=(\d{1,12})-(\d{0,12})", request.headers.get("range", ""))
    if asked is None or whole.status_code != 200:
        return whole
    first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
    if first > last:
        return Response(status_code=416, headers={"content-range": f"bytes */{len(data)}"})
    headers = {
        "etag": whole.headers["etag"],
        "cache-control": whole.headers["cache-control"],
        "accept-ranges": "bytes",
        "content-range": f"bytes {first}-{last}/{len(data)}",
    }
    return Response(data[first : last + 1], 206, headers, whole.media_type)


def _failed(error: BurnishError) -> Response:
    kinds = {NotFound: 404, UserError: 400, TookTooLong: 503}
    status = next((code for kind, code in kinds.items() if isinstance(error, kind)), 500)
    return JSONResponse({"error": " ".join(str(error).split())}, status)


def _file(files: dict[str, Path], request: Request) -> Response:
    name = request.path_params.get("name", "favicon.ico")
    if name not in files:
        return PlainTextResponse("burnish view: no such file.\n", 404)
    return _served(request, files[name])


def _served(request: Request, path: Path) -> Response:
    return _tagged(request, path.read_bytes(), TYPES[path.suffix])


def _tagged(request: Request, body: bytes, kind: str) -> Response:
    """The body, or 304 where the browser has just this one."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if tag in [known.strip() for known in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _no_such_route(request: Request) -> Response:
    return JSONResponse({"error": "no such route; see docs/viewer.md."}, 404)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse({"error": getattr(error, "detail", "failed")}, status)


async def _bug(request: Request, error: Exception) -> Response:
    """A bug: the browser gets one line, the terminal the traceback (from the server itself)."""
    return JSONResponse({"error": f"a bug in the viewer: {type(error).__name__}"}, 500)


HOST = "127.0.0.1"
STOP_S = 2
"""Open requests get so long when the server is stopped."""
CONNECTIONS = 128
"""Open at the same time; a browser uses six."""
NICE = 10


def new_token() -> str:
    return secrets.token_urlsafe(32)


def address(own: socket.socket, token: str, page: str = "/") -> str:
    """What to open in a browser."""
    mark = "&" if "?" in page else "?"
    return f"http://{HOST}:{own.getsockname()[1]}{page}{mark}token={token}"


def serve(viewer: Viewer, token: str, own: socket.socket) -> None:
    """Answer requests until Ctrl-C or a termination signal."""
    # Looking at a run must not slow it down: where cores are short, training goes first.
    with contextlib.suppress(OSError):
        os.nice(NICE)
    app = make_app(viewer, token)
    try:
        make_server(app, Bounds(connections=CONNECTIONS), stop_s=STOP_S).run(sockets=[own])
    finally:
        viewer.close()
