"""An OpenAI-compatible address on this machine, behind which a step's own model answers.

One server for all episodes of an event loop, on a free port of 127.0.0.1, for as long as there are
any. A key is an episode: it is drawn at random, only its hash is kept, and it is worth nothing once
the episode is over. Errors have the protocol's shape; the codes are such that clients do not try
again in vain.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from burnish.boundary import Name, NonNegative, PositiveInt, PositiveShare
from burnish.errors import UserError
from burnish.lm.base import JsonObject
from burnish.records import Finish, Message
from burnish.rollouts.tool import Call
from burnish.seeds import digest
from burnish.web.asgi import Refused, bearer, foreign, json_body, malformed, while_connected

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from burnish.rollouts.episode import Episode
    from burnish.web.server import LoopServer

ROLES = {"developer": "system"} | {r: r for r in ("system", "user", "assistant", "tool")}
MOST_CHOICES = 128
MOST_TOOLS = 128


class BadRequest(Exception):
    """A request that cannot be answered; the program gets the line with HTTP 400."""

    def __init__(self, what: str, code: str = "invalid_request") -> None:
        super().__init__(what)
        self.code = code


class ChatRequest(NamedTuple):
    messages: tuple[Message, ...]
    tools: tuple[JsonObject, ...]
    n: int
    max_tokens: int | None
    stop: tuple[str, ...]
    is_stream: bool
    has_usage: bool
    """Whether a stream ends with the counts of tokens."""
    has_logprobs: bool


class Reply(NamedTuple):
    content: str
    calls: tuple[Call, ...]
    ids: tuple[str, ...]
    finish: Finish
    tokens: tuple[tuple[str, float], ...]
    """Text and log-prob of each token; empty where not asked for."""
    prompt_tokens: int
    completion_tokens: int


class _Text(Struct):
    text: str
    type: Literal["text"] = "text"


class _Called(Struct):
    name: str
    arguments: JsonObject | str | None = None

    def read(self) -> Call:
        found = self.arguments or {}
        if isinstance(found, str):
            found = msgspec.json.decode(found, type=JsonObject)
        return Call(self.name, found)


class _ToolCall(Struct):
    function: _Called
    id: str | None = None


class _Message(Struct):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


class _Offered(Struct):
    function: JsonObject
    type: Literal["function"] = "function"


class _Format(Struct):
    type: Literal["text"] = "text"


class _Body(Struct):
    messages: Annotated[list[_Message], Meta(min_length=1)]
    model: Any = None
    tools: Annotated[list[_Offered], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: Any = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = 1
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    stop: Name | list[Name] | None = None
    temperature: NonNegative | None = None
    top_p: PositiveShare | None = None
    stream: bool | None = False
    stream_options: JsonObject | None = None
    logprobs: bool | None = False
    response_format: _Format | None = None
    functions: None = None
    """Not offered: programs send `tools`."""


def read_request(body: bytes) -> ChatRequest:
    try:
        found = msgspec.json.decode(body, type=_Body, strict=False)
        messages = _read_messages(found.messages)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no chat request: {' '.join(str(error).split())}") from None
    limits = [m for m in (found.max_tokens, found.max_completion_tokens) if m is not None]
    stop = (found.stop,) if isinstance(found.stop, str) else tuple(found.stop or ())
    return ChatRequest(
        messages,
        _read_tools(found.tools or []) if found.tool_choice != "none" else (),
        found.n or 1,
        min(limits) if limits else None,
        stop,
        bool(found.stream),
        bool((found.stream_options or {}).get("include_usage")),
        bool(found.logprobs),
    )


def _read_messages(given: list[_Message]) -> tuple[Message, ...]:
    named: dict[str, str] = {}
    read = []
    for message in given:
        own = message.tool_calls or ()
        calls = tuple(one.function.read() for one in own)
        named |= {str(one.id): one.function.name for one in own}
        content = message.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        name = message.name
        if message.role == "tool":
            name = name or named.get(message.tool_call_id or "") or None
        read.append(
            Message(ROLES[message.role], text, name, tuple(call.as_dict() for call in calls))
        )
    return tuple(read)


def _read_tools(given: list[_Offered]) -> tuple[JsonObject, ...]:
    names = [str(tool.function.get("name") or "") for tool in given]
    wrong = [name for name in names if not name or names.count(name) > 1]
    if wrong:
        raise BadRequest(f"a tool is named '{wrong[0]:.60}'; expected a name of its own for each")
    return tuple({"type": "function", "function": tool.function} for tool in given)


def message_key(role: str, text: str, calls: Sequence[Call]) -> str:
    """What makes two messages the same one, however a client library writes it.

    Programs give replies back with other ids, other spaces around them and None for an empty text.
    """
    called = json.dumps([[call.name, call.arguments] for call in calls], sort_keys=True)
    return digest(role, text.strip() if role == "assistant" else text, called)


def key_of(message: Message) -> str:
    calls = [Call(**call["function"]) for call in message.tool_calls]
    return message_key(message.role, message.text, calls)


def completion_body(asked: ChatRequest, model: str, id_: str, replies: Sequence[Reply]) -> bytes:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": reply.content, "refusal": None}
            | (
                {"tool_calls": _calls(reply), "content": reply.content or None}
                if reply.calls
                else {}
            ),
            "finish_reason": _reason(reply),
            "logprobs": _logprobs(reply) if asked.has_logprobs else None,
        }
        for index, reply in enumerate(replies)
    ]
    head = _head("chat.completion", model, id_)
    return msgspec.json.encode({**head, "choices": choices, "usage": _usage(replies)})


def stream_body(asked: ChatRequest, model: str, id_: str, replies: Sequence[Reply]) -> bytes:
    head = _head("chat.completion.chunk", model, id_)
    events: list[JsonObject] = []
    for index, reply in enumerate(replies):
        logprobs = _logprobs(reply) if asked.has_logprobs else None
        for delta in _deltas(reply):
            reason = None if delta else _reason(reply)
            choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
            events.append({**head, "choices": [choice]})
            logprobs = None
    if asked.has_usage:
        events.append({**head, "choices": [], "usage": _usage(replies)})
    lines = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    return b"".join(lines) + b"data: [DONE]\n\n"


PIECE = 16


def _deltas(reply: Reply) -> Iterator[JsonObject]:
    yield {"role": "assistant", "content": ""}
    for start in range(0, len(reply.content), PIECE):
        yield {"content": reply.content[start : start + PIECE]}
    for index, call in enumerate(_calls(reply)):
        yield {"tool_calls": [{"index": index, **call}]}
    yield {}


def _calls(reply: Reply) -> list[JsonObject]:
    return [
        {
            "id": id_,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for id_, call in zip(reply.ids, reply.calls, strict=True)
    ]


def _reason(reply: Reply) -> str:
    if reply.calls:
        return "tool_calls"
    return "length" if reply.finish is Finish.LENGTH else "stop"


def _logprobs(reply: Reply) -> JsonObject:
    content = [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        for text, value in reply.tokens
    ]
    return {"content": content, "refusal": None}


def _usage(replies: Sequence[Reply]) -> dict[str, int]:
    read = replies[0].prompt_tokens
    written = sum(reply.completion_tokens for reply in replies)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _head(kind: str, model: str, id_: str) -> JsonObject:
    return {"id": id_, "object": kind, "created": int(time.time()), "model": model}


MOST_BYTES = 16 << 20
PATHS = "/v1/chat/completions, /v1/models"


class Address(NamedTuple):
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
        try:
            from burnish.web.server import Bounds, LoopServer
        except ModuleNotFoundError as error:
            raise UserError(
                f"rollout.kind 'agent' needs '{error.name}': pip install 'burnish[serve]'"
            ) from error
        async with self._starting:
            if self._server is None:
                server = LoopServer(self, Bounds(connections=4096))
                await server.start()
                self._server = server
        return self._server.address

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import ClientDisconnect, Request

        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            bad, elsewhere = malformed(scope), foreign(scope)
            if bad or elsewhere:
                raise Refused(400 if bad else 403, bad or elsewhere)
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
            one = {"id": name, "object": "model", "created": 0, "owned_by": "burnish"}
            return _response(msgspec.json.encode({"object": "list", "data": [one]}))
        if method != "POST" or path != "/v1/chat/completions":
            raise Refused(404, f"{method[:20]} {path[:60]}: expected {PATHS}.")
        try:
            asked = read_request(await json_body(request, MOST_BYTES))
        except (BadRequest, Refused) as error:
            episode.refuse(error)
            raise
        replies = await while_connected(request, lambda: episode.answer(asked))
        id_ = f"chatcmpl-{digest(episode.task.id, str(episode.requests), replies[0].content)}"
        if asked.is_stream:
            body = stream_body(asked, name, id_, replies)
            return _response(body, kind="text/event-stream; charset=utf-8")
        return _response(completion_body(asked, name, id_, replies))


_endpoints: dict[asyncio.AbstractEventLoop, Endpoint] = {}


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _problem(code: int, message: str, what: str) -> Response:
    kind = "authentication_error" if code == 401 else "invalid_request_error"
    error = {"message": " ".join(message.split()), "type": kind, "param": None, "code": what}
    reply = _response(msgspec.json.encode({"error": error}), code)
    if code == 401:
        reply.headers["www-authenticate"] = "Bearer"
    return reply


def _response(body: bytes, code: int = 200, kind: str = "application/json") -> Response:
    from starlette.responses import Response

    return Response(body, code, media_type=kind)
