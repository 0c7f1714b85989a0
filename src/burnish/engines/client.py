"""Scorers that live on other machines, as `burnish serve-reward` serves them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec

from burnish.engines.background import call
from burnish.engines.messages import About, Problem, ScoreReply
from burnish.errors import RewardError, UserError
from burnish.lm.connections import Connections, checked_url, key_of, read_body
from burnish.lm.failures import (
    EXPECTED,
    BadReply,
    ForeignReply,
    Unreachable,
    classify,
    failure_of_code,
    retry_after_s,
)
from burnish.lm.jobs import Answer, Job, Limits
from burnish.lm.request_pool import RequestPool
from burnish.records import Response, Reward, Task
from burnish.rewards.combine import Weighted
from burnish.rewards.scorer import fingerprint
from burnish.seeds import digest

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

MAX_REPLY_BYTES = 64 * 1024 * 1024
PAUSE_S = 0.5
"""Before all judges of a cluster are asked once more."""


class RemoteScorer:
    """The `Scorer` protocol over HTTP."""

    def __init__(
        self,
        url: str,
        *,
        token_env: str = "",
        limits: Limits | None = None,
        weight: float = 1.0,
    ) -> None:
        """Asks the server what it serves; `token_env` names an environment variable."""
        self._url = checked_url("url", url, odd=" ?#@")
        self.pool = RequestPool(limits or Limits(retries=4))
        self.weight = weight
        self._connections = Connections(key_of("token_env", None, token_env or None))
        self._calls = count(1)

        async def ask() -> About:
            # A separate pool: this runs on the background loop, `score` on the caller's.
            pool = RequestPool(Limits(attempt_s=10.0, deadline_s=30.0, retries=3, concurrency=1))
            try:
                return await self._fetch(pool, "GET", "/about", About)
            finally:
                await self.aclose()

        self.about: About = call(ask)
        self.name, self.scope = self.about.name, self.about.scope
        self.needs = frozenset(self.about.needs)
        # The served scorer's own, so that cached scores survive a restart of the server.
        self.fingerprint = digest("remote", self.about.fingerprint or self._url)

    def __repr__(self) -> str:
        return f"RemoteScorer({self._url!r})"

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """The server's rewards; rewards without a value where it could not be reached."""
        try:
            return await self.ask(task, responses)
        except EXPECTED as error:
            return self.failed(error, responses)

    async def ask(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """The server's rewards; raises where it could not be reached."""
        own = [msgspec.structs.replace(response, role="policy") for response in responses]
        try:
            body = msgspec.json.encode({"task": task, "responses": own})
        except (TypeError, ValueError) as error:
            raise UserError(
                f"task {task.id} cannot be sent: {error}; expected fields and texts that JSON can hold."
            ) from None
        reply = await self._fetch(self.pool, "POST", "/score", ScoreReply, body)
        if reply.fingerprint != self.about.fingerprint:
            raise RewardError(
                f"the server {self._url} now serves another reward than at first; start the run again"
            )
        return list(reply.rewards)

    def failed(self, error: BaseException, responses: Sequence[Response]) -> list[Reward]:
        """Rewards without a value; a scorer that broke its contract raises."""
        if isinstance(error, RewardError):
            raise error
        said = " ".join(str(error).split())[:500]
        return [Reward.failed(self.name, classify(error).status, said) for _ in responses]

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        await self._connections.aclose()

    async def _fetch(
        self, pool: RequestPool, method: str, path: str, kind: type[T], body: bytes | None = None
    ) -> T:
        import httpx

        where = f"{self._url}{path}"

        async def request(job: Job) -> Answer[bytes]:
            try:
                async with (
                    self._connections.one() as client,
                    client.stream(method, where, content=body) as reply,
                ):
                    data = await read_body(reply, where, MAX_REPLY_BYTES)
            except httpx.TransportError as error:
                raise Unreachable(f"{where}: {type(error).__name__} {error}") from error
            if reply.status_code != 200:
                raise _refusal(reply, data, where)
            # A page by a proxy is no reply of this server; another try may reach it.
            _decoded(data, dict[str, msgspec.Raw], where, ForeignReply)
            return Answer(data)

        return _decoded(await pool.call(Job(f"{where} #{next(self._calls)}"), request), kind, where)


def _refusal(reply: httpx.Response, data: bytes, where: str) -> Exception:
    code = reply.status_code
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = Problem(data[:200].decode("utf-8", "replace"), "server")
    what = f"{where}: HTTP {code}: {problem.error}"
    if code in (401, 422):
        return UserError(f"{what} Set the variable that token_env names." if code == 401 else what)
    if problem.kind == "reward":
        return RewardError(what)
    return failure_of_code(code, what, retry_after_s(reply.headers.get("retry-after")))


def _decoded(data: bytes, kind: type[T], where: str, failure: type[BadReply] = BadReply) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise failure(f"{where}: the reply is no {kind.__name__} in JSON: {error}") from error


class ServedRewards(Weighted):
    """A run's rewards by the judges of its cluster: a group is scored by the judge whose turn it is, else the next."""

    def __init__(
        self, own: Weighted, urls: Sequence[str], *, token_env: str, attempt_s: float, away_s: float
    ) -> None:
        """A judge has `attempt_s` for a group; groups that none has scored within `away_s` more get
        no value.
        """
        weights = {
            part.name: weight for part, weight in zip(own.children, own.weights, strict=True)
        }
        super().__init__(own.children, weights=weights, name=own.name)
        limits = Limits(retries=0, attempt_s=attempt_s, deadline_s=attempt_s, concurrency=256)
        self.away_s = away_s
        self.judges = [RemoteScorer(url, token_env=token_env, limits=limits) for url in urls]
        self._turn = count()
        for judge in self.judges:
            if judge.about.fingerprint != fingerprint(own):
                raise UserError(
                    f"{judge!r} serves another reward than this run's; expected the same recipe, "
                    "settings and files"
                )

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """Rewards of one judge; where it died another one is asked, or it is asked again."""
        ends = time.monotonic() + self.away_s
        number = next(self._turn)
        while True:
            judge = self.judges[number % len(self.judges)]
            try:
                return await judge.ask(task, responses)
            except EXPECTED as error:
                if not classify(error).retry or time.monotonic() > ends:
                    return judge.failed(error, responses)
            await anyio.sleep(PAUSE_S / len(self.judges))
            number += 1
