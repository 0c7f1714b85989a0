"""Who may ask: this machine, by its own name, with the token, from the viewer's own page.

Every request passes through `Guard` before anything else looks at it. It refuses with one line:

- a request that two programs could read differently (`request_checks.malformed`);
- a `Host` that is not a loopback name, an `Origin` that is not ours, or a browser that says another
  site asks (`request_checks.foreign`);
- anything but `GET` and `HEAD`;
- a request without the token, which comes once in the address and then as a cookie that no script
  can read and no other site can send, or as `Authorization: Bearer` for programs.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from burnish.web.request_checks import foreign, malformed

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
        send = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        """What to answer instead, or None where the request may pass."""
        headers = Headers(scope=scope)
        if why := malformed(scope):
            return _refuse(scope, 400, why)
        if why := foreign(scope):
            return _refuse(scope, 403, why)
        if scope["method"] not in ("GET", "HEAD"):
            return _refuse(scope, 405, f"{scope['method']} is not allowed; the viewer only reads.")
        given = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if PARAMETER in given:
            if not self._is_token(given[PARAMETER]):
                return _refuse(
                    scope, 403, "wrong token; use the address that burnish view printed."
                )
            return self._welcome(scope)
        if self._is_token(_bearer(headers)) or self._is_token(self._cookie(headers)):
            return None
        return _refuse(
            scope, 403, "no token; open the whole address that burnish view printed, once."
        )

    def _welcome(self, scope: Scope) -> Response:
        """Keep the token in a cookie and take it out of the address."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
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

    def _cookie(self, headers: Headers) -> str:
        return cookie_parser(headers.get("cookie", "")).get(self.cookie, "")


def _bearer(headers: Headers) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _refuse(scope: Scope, status: int, line: str) -> Response:
    # Where a request's end is in doubt, nothing after it on the same connection is a request.
    headers = {"connection": "close"} if status == 400 else None
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": line}, status, headers)
    return PlainTextResponse(f"burnish view: {line}\n", status, headers)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _missing(headers, HEADERS.items()):
                headers[name] = value
            if "cache-control" not in headers:
                headers["cache-control"] = "no-store"
        await send(message)

    return sending


def _missing(headers: MutableHeaders, wanted: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in wanted if name not in headers]
