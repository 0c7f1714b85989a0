"""A language model behind an OpenAI-style server: vLLM, SGLang, llama.cpp, hosted ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args

import anyio
import msgspec
from msgspec import Meta

from burnish.arguments import as_word
from burnish.boundary import Settings
from burnish.concurrency import gather
from burnish.errors import UserError
from burnish.lm import wire
from burnish.lm.base import Completion, JsonObject, Prompt, Sampling, Scores, TokenIds, media_of
from burnish.lm.budget import SAFETY, Cost, current_meter, estimate_tokens
from burnish.lm.capabilities import Capabilities, score
from burnish.lm.connections import Connections, checked_url, key_of, read_body, shown_address
from burnish.lm.failures import (
    CallFailed,
    ForeignReply,
    NotSent,
    RateLimited,
    Rejected,
    ServerFailed,
    Unreachable,
    failure_of_code,
    retry_after_s,
    unwrapped_errors,
)
from burnish.lm.jobs import Answer, Job, Limits
from burnish.lm.model_input import media_names
from burnish.lm.request_pool import RequestPool
from burnish.lm.wire import MediaLimits
from burnish.records import Finish, Message

if TYPE_CHECKING:
    import httpx

    from burnish.store.blobs import Blobs

MAX_REPLY_BYTES = 64 * 1024 * 1024
Structured = Literal["auto", "on", "off"]
REFUSED_FORMAT = (400, 415, 422)
"""Statuses of a server that does not take `response_format`, or not this schema."""
FAILED_AT_FORMAT = (404, 500, 501)
"""Statuses that may mean the same while no reply with a schema was seen."""
WAIT_S = 0.02
MARKER_TOKENS = 4
"""What a chat template adds to a message, roughly."""
MEDIA_TOKENS = 1000
"""What an image or a sound costs, roughly, where the server does not count."""


Price = Annotated[float, Meta(ge=0.0, le=1e9)]


class Prices(Settings, frozen=True, kw_only=True):
    """What a server charges, in dollars for a million tokens."""

    prompt_usd: Price = 0.0
    completion_usd: Price = 0.0

    def cost_usd(self, usage: wire.Usage | Cost) -> float:
        prompt = usage.prompt_tokens * self.prompt_usd
        return (prompt + usage.completion_tokens * self.completion_usd) / 1e6


class OpenAILM:
    """The `LM` protocol over HTTP."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        api_key_env: str | None = None,
        limits: Limits | None = None,
        pool: RequestPool | None = None,
        prices: Prices | None = None,
        accept_models: Sequence[str] = (),
        capabilities: Capabilities | None = None,
        blobs: Blobs | None = None,
        media: MediaLimits | None = None,
        structured: Structured = "auto",
    ) -> None:
        """A `pool` brings its own limits. `blobs` holds the bytes of images and sounds in messages; by default this machine's.

        `media` limits how many of them a request holds, and their size.

        `structured`: whether `sample_json` asks for its JSON schema (`response_format`).
        """
        self._base = checked_url("base_url", base_url)
        self._blobs = blobs
        self.media = media or MediaLimits()
        self.model = model
        self.pool = pool or RequestPool(limits)
        self.prices = prices or Prices()
        self.accept_models = tuple(accept_models)
        self.capabilities = capabilities or Capabilities()
        self._key = key_of("api_key_env", api_key, api_key_env)
        self._connections = Connections(self._key)
        self._calls = 0
        as_word("structured", structured, get_args(Structured))
        self.structured: Structured = structured
        self.forces_json: bool | None = None if structured == "auto" else structured == "on"
        """Whether the server holds a reply to a schema; None until it was seen."""
        self._is_trying_json = False
        self.max_seed = 0
        """As the server said in its list of models; 0 before it was asked."""

    @property
    def name(self) -> str:
        return self.model

    @property
    def identity(self) -> str:
        """The server's address, without a key: other servers may serve the same name."""
        return self._shown("")

    def __repr__(self) -> str:
        return f"OpenAILM({self._shown('')!r}, {self.model!r})"

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """`sampling.n` completions of one prompt; see `capabilities` for what they carry."""
        _refuse_media_ids(prompt)
        if sampling.n == 1 or self.capabilities.n:
            return await self._sample(prompt, sampling)

        async def one(index: int) -> list[Completion]:
            alone = msgspec.structs.replace(sampling, n=1, seed=sampling.seed + index)
            return await self._sample(prompt, alone)

        with unwrapped_errors():
            parts = await gather([partial(one, i) for i in range(sampling.n)], limit=sampling.n)
        return [completion for part in parts for completion in part]

    async def sample_json(
        self, prompt: Prompt, sampling: Sampling, schema: JsonObject
    ) -> list[Completion]:
        """As `sample`, the reply held to a JSON schema where the server can do that.

        With `structured="auto"` the first request tells: one that is refused, or that fails with
        404, 500 or 501, is sent again without the schema; a server that then answers, or that
        ignored the schema, is not asked for it again. The others wait for that answer, so that a
        server refuses once. What is no JSON object with the schema's keys is returned as it came:
        the caller reads it, or says what is wrong.
        """
        # Several event loops may share a model, so there is no event of one of them to wait for.
        while self.forces_json is None and self._is_trying_json:  # noqa: ASYNC110
            await anyio.sleep(WAIT_S)
        if self.forces_json is not None:
            return await self._forced(prompt, sampling, schema if self.forces_json else None)
        self._is_trying_json = True
        try:
            completions = await self._forced(prompt, sampling, schema)
            whole = [one for one in completions if one.finish is Finish.STOP]
            if self.forces_json is None and whole:
                self.forces_json = all(wire.is_object_of(schema, one.text) for one in whole)
        finally:
            self._is_trying_json = False
        return completions

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        """Log-probs of given tokens, from a server with `prompt_logprobs` or `echo`.

        Raises `Unsupported`, a `ModelError`, where the server has neither.
        """
        _refuse_media_ids(prompt_ids)
        return await score(self, prompt_ids, response_ids)

    async def post(
        self, path: str, body: JsonObject, tokens: int = 0, *, needs_choices: bool = False
    ) -> wire.Reply:
        """One generation request through the pool, its reply checked for shape and model."""
        where = self._shown(path)
        content = _encoded(body, where)

        async def request(job: Job) -> Answer[wire.Reply]:
            with self._unanswered(body):
                data = await self._send("POST", path, content)
            with self._unread(data, body):
                reply = wire.decode(data, wire.Reply, where, secret=self._key)
                if needs_choices and not reply.choices:
                    raise ForeignReply(f"{where}: the reply has no choices")
                wire.check_model(
                    self.model, reply.model, self.accept_models, where, secret=self._key
                )
            usage = reply.counted
            cost = self._priced(usage.prompt_tokens, usage.completion_tokens)
            if not usage.is_whole:
                said = wire.text_of(reply)
                # Without a word there were thoughts, or a filter took them away: they are paid.
                written = estimate_tokens(said) if said else _most_written(body)
                guessed = self._priced(
                    0 if usage.prompt_tokens else _prompt_tokens(body),
                    0 if usage.completion_tokens else written,
                    estimated=True,
                )
                cost = cost.plus(guessed)
            self._charge(cost, is_estimated=not usage.is_whole)
            return Answer(reply, usage.prompt_tokens, usage.completion_tokens, cost.usd)

        job = self._job(path, tokens)
        if (meter := current_meter()) is not None:
            meter.is_used = True
        return await self.pool.call(job, request)

    async def list_models(self) -> tuple[str, ...]:
        """Names of the models that the server says it has."""

        async def request(job: Job) -> Answer[tuple[str, ...]]:
            data = await self._send("GET", "/models", None)
            where = self._shown("/models")
            listed = wire.decode(data, wire.ModelList, where, secret=self._key)
            self.max_seed = min((model.max_seed for model in listed.data), default=0)
            return Answer(tuple(model.id for model in listed.data))

        return await self.pool.call(self._job("/models"), request)

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        await self._connections.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def _sample(
        self, prompt: Prompt, sampling: Sampling, schema: JsonObject | None = None
    ) -> list[Completion]:
        path = "/completions" if wire.is_token_ids(prompt) else "/chat/completions"
        logprobs = self.capabilities.logprobs or sampling.top_logprobs > 0
        body = wire.request_body(
            self.model,
            prompt,
            sampling,
            logprobs=logprobs,
            token_ids=self.capabilities.token_ids,
            blobs=self._media(prompt),
            schema=schema,
            media=self.media,
            max_seed=self.max_seed,
        )
        reply = await self.post(path, body, _estimate(prompt, sampling), needs_choices=True)
        completions = wire.completions_of(
            reply, sampling, logprobs=logprobs, where=self._shown(path), secret=self._key
        )
        return wire.with_usage(completions, reply.counted, self.prices.cost_usd(reply.counted))

    async def _forced(
        self, prompt: Prompt, sampling: Sampling, schema: JsonObject | None
    ) -> list[Completion]:
        """With the schema; without it, now and from now on, where the server does not take it."""
        try:
            return await self._sample(prompt, sampling, schema)
        except (Rejected, ServerFailed) as error:
            is_final = schema is None or self.structured == "on"
            may_be_format = error.code in REFUSED_FORMAT or (
                self.forces_json is None and error.code in FAILED_AT_FORMAT
            )
            if is_final or not may_be_format:
                raise
        completions = await self._sample(prompt, sampling)
        self.forces_json = False
        return completions

    def _media(self, prompt: Prompt) -> Blobs | None:
        """Where the bytes of a prompt's media are; None for text."""
        if not any(isinstance(part, Message) and part.media for part in prompt):
            return None
        if self._blobs is None:
            from burnish.store.blobs import shared_blobs

            return shared_blobs()
        return self._blobs

    # --- what requests cost

    def _priced(self, read: int, written: int, *, estimated: bool = False) -> Cost:
        usd = self.prices.cost_usd(Cost(read, written))
        return Cost(read, written, usd * SAFETY if estimated else usd)

    def _charge(self, cost: Cost, *, is_estimated: bool) -> None:
        if (meter := current_meter()) is not None:
            meter.charge(cost, is_estimated=is_estimated)

    def _lose(self, cost: Cost, *, is_estimated: bool) -> None:
        self._charge(cost, is_estimated=is_estimated)
        totals = self.pool.totals
        totals.cost_usd += cost.usd
        if not is_estimated:
            totals.prompt_tokens += cost.prompt_tokens
            totals.completion_tokens += cost.completion_tokens

    @contextmanager
    def _unanswered(self, body: JsonObject) -> Iterator[None]:
        """Charge a request that was sent and never answered: a deadline passed, another copy was
        quicker, or the connection broke. The server may bill it in full."""
        try:
            yield
        except (Rejected, RateLimited, ServerFailed, NotSent):
            raise
        # Boundary: cancellation is how deadlines and hedges end a request.
        except BaseException:
            most = self._priced(_prompt_tokens(body), _most_written(body), estimated=True)
            self._lose(most, is_estimated=True)
            raise

    @contextmanager
    def _unread(self, data: bytes, body: JsonObject) -> Iterator[None]:
        """A reply of no use is charged by its own count, or as the most where a model wrote it."""
        try:
            yield
        except CallFailed:
            usage = wire.usage_in(data)
            counted = self._priced(usage.prompt_tokens, usage.completion_tokens)
            if usage.is_whole or not wire.is_by_a_model(data):
                self._lose(counted, is_estimated=False)
            else:
                most = self._priced(_prompt_tokens(body), _most_written(body), estimated=True)
                self._lose(most.at_least(counted), is_estimated=True)
            raise

    def _job(self, path: str, tokens: int = 0) -> Job:
        self._calls += 1
        return Job(f"{self._shown(path)} #{self._calls}", tokens)

    async def _send(
        self, method: str, path: str, content: bytes | None, *, root: bool = False
    ) -> bytes:
        """Send one request; transport errors and statuses become the failures of `lm.failures`.

        `root`: the path stands beside the protocol's `/v1`, not below it.
        """
        import httpx

        where = self._shown(path)
        base = self._base.removesuffix("/v1") if root else self._base
        try:
            async with (
                self._connections.one() as client,
                client.stream(method, base + path, content=content) as response,
            ):
                data = await read_body(response, where, MAX_REPLY_BYTES)
        except httpx.TransportError as error:
            detail = wire.excerpt(str(error).encode(), self._key)
            never = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
            kind = NotSent if isinstance(error, never) else Unreachable
            raise kind(
                f"{where}: the connection failed: {type(error).__name__} {detail}"
            ) from error
        if response.status_code == 200:
            return data
        raise self._refusal(response, data, where)

    def _refusal(self, response: httpx.Response, data: bytes, where: str) -> Exception:
        code = response.status_code
        what = f"{where}: HTTP {code}, body {wire.excerpt(data, self._key)}"
        if code < 300:
            return ForeignReply(what)
        hints = {
            401: "; check the API key (api_key_env)",
            403: "; check the API key (api_key_env)",
            404: "; check base_url (it mostly ends in /v1) and the model's name",
        }
        after_s = retry_after_s(response.headers.get("retry-after"))
        return failure_of_code(code, what + hints.get(code, ""), after_s)

    def _shown(self, path: str) -> str:
        return shown_address(self._base) + path


def _estimate(prompt: Prompt, sampling: Sampling) -> int:
    """Tokens a request will use at most, for the rate limit; four characters make a token."""
    sizes = [1 if isinstance(p, int) else len(p.text) // 4 + MARKER_TOKENS for p in prompt]
    return sum(sizes) + sampling.n * sampling.max_tokens


def _prompt_tokens(body: JsonObject) -> int:
    if ids := body.get("prompt") or body.get("token_ids"):
        return len(ids)
    count = 0
    for message in body["messages"]:
        parts = message["content"]
        texts = (
            [p["text"] for p in parts if p["type"] == "text"] if isinstance(parts, list) else parts
        )
        media = len(parts) - len(texts) if isinstance(parts, list) else 0
        count += estimate_tokens("".join(texts)) + media * MEDIA_TOKENS + MARKER_TOKENS
    return count


def _most_written(body: JsonObject) -> int:
    asked = body.get("sampling_params", body)
    return int(asked["max_tokens"]) * int(asked.get("n", 1))


def _encoded(body: JsonObject, where: str) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise Rejected(
            f"{where}: the prompt holds half a character ({error.object[error.start]!r}); clean it"
        ) from None


def _refuse_media_ids(prompt: Prompt) -> None:
    """A server gets the bytes of media with messages; token ids would leave them behind."""
    if media := media_of(prompt):
        raise UserError(
            f"a prompt of token ids stands for {media_names([media])}, which no server is sent with "
            "ids; expected messages. Sample a model that reads media in this process: sampler.kind = "
            "'in_process'"
        )
