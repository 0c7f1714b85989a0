"""Servers that sample for a run: who is asked, who has which weights, and whether they really have them.

A request goes to the server with the fewest tokens in flight; the samples of one group stay on one,
for their common prefix. A server that does not answer leaves the rotation, its rows are sampled on
another with the same seeds, and it comes back with the next update. None left: the run stops.

Every update is verified in the workers: by the checksums that a server tells of what they hold, or by
the log-probs that they give a fixed text, which the trainer computed under the same weights. Unequal:
it is sent again in full, then the server is started again where somebody can, then the run stops. A
checksum of the folder would prove nothing: a vLLM with a tied head reads it and keeps the old head.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.to_thread

from burnish.concurrency import gather
from burnish.config.schema import Remote
from burnish.engines.cluster import served
from burnish.engines.sampling_server import DIALECTS, Server
from burnish.errors import ModelError, UserError
from burnish.lm.base import Completion, Home, Prompt, Sampling, Scores, TokenIds, home, within_row
from burnish.lm.failures import (
    CallFailed,
    RateLimited,
    ServerFailed,
    TimedOut,
    Unreachable,
    Unsupported,
    classify,
)
from burnish.lm.wire import is_token_ids
from burnish.texts import counted, shown_path

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.lm.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

CANARY = (
    "The canary sings: 3 + 4 = 7, while def f(x): return x * x stays Python, and {'a': [1, 2]} JSON. "
    "Why do 29 yellow birds, \u00e9tudes and \u4f60\u597d need 0.125 s? Nobody knows; they do."
)
"""A text with words, numbers, code and other scripts: many rows of the embedding and of the head."""
MOST_SUNG = 96
"""Tokens of it."""
TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""Mean difference of the canary's log-probs, in nats a token, that is rounding and not weights."""
MOVED = 0.1
"""Of the tolerance: where the trainer's log-probs moved by more, a server's must have moved too."""


class OtherWeights(ModelError):
    """The workers of a server do not have the weights that were sent to it."""


class NoServers(UserError):
    """No server is left to sample."""


class Sent(NamedTuple):
    """One update."""

    version: int
    weights: Mapping[str, Tensor]
    """Empty where the folder has them."""
    checksum: str
    dtype: str
    canary: tuple[float, ...]
    """The log-probs of the canary under them; none before the first update."""


class Servers:
    """The `RemoteSampler` of a run."""

    is_remote = True
    """Its calls do not meet in a batch here."""
    verify = True

    def __init__(
        self,
        settings: Remote,
        *,
        tokenizer: Tokenizer,
        version: int = 0,
        longest_row: Callable[[int], int] | None = None,
        restart: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`restart` starts the server of a url again, and returns when it answers."""
        if not settings.urls:
            raise UserError("sampler.urls: got none, expected the address of each server")
        if not (Path(settings.folder) / "config.json").is_file():
            raise UserError(
                f"folder {settings.folder} is no model folder; write it with save_model, start the "
                "servers on it"
            )
        self.settings, self.tokenizer = settings, tokenizer
        kind = DIALECTS[settings.dialect]
        self.servers = [kind(url, settings, version) for url in settings.urls]
        room = min(MOST_SUNG, longest_row(1) - 1) if longest_row else MOST_SUNG
        self.canary: TokenIds = tuple(tokenizer.encode(CANARY))[:room]
        self._longest_row, self.restart = longest_row, restart
        self._renewing = anyio.Lock()
        """Held while servers are given weights: what finds none meanwhile waits for them."""
        self._wanted, self._sent = version, Sent(version, {}, "", "", ())

    @property
    def name(self) -> str:
        """The model's name, as the servers know it."""
        return self.servers[0].lm.model

    @property
    def identity(self) -> str:
        """Changes with the weights: what was sampled before is another model's."""
        return f"{self.servers[0].lm.identity} {self.weight_version}"

    @property
    def served(self) -> tuple[int, ...]:
        """The version that each server has; -1: it is not asked."""
        return tuple(server.version if server.answers else -1 for server in self.servers)

    @property
    def weight_version(self) -> int:
        """The oldest version that a completion may be sampled with."""
        return min((version for version in self.served if version >= 0), default=-1)

    @property
    def staleness(self) -> int:
        """Versions by which the oldest lags behind the trainer's."""
        return self._wanted - self.weight_version

    async def connect(self) -> None:
        """Reach every server."""
        await gather([server.connect for server in self.servers])

    def follow(self, version: int, served: Sequence[int]) -> None:
        """Note what the process that updates the servers knows of them."""
        self._wanted = version
        # What a server that is started again is given here: the folder has it.
        self._sent = self._sent._replace(version=version)
        for server, has in zip(self.servers, served, strict=True):
            server.version = has
            if has < 0 and server.answers:
                server.leave("the first process asks it no more")
            elif has >= 0:
                server.out = ""

    # --- sampling

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Completions that carry the version of the weights they were sampled with."""
        if self._longest_row is not None and is_token_ids(prompt):
            sampling = within_row(self.name, len(prompt), self._longest_row(len(prompt)), sampling)
        while True:
            server = await self._choose()
            try:
                found = await server.sample(prompt, sampling)
            except CallFailed as error:
                is_its_own = isinstance(error, ServerFailed | RateLimited)
                if not classify(error).retry or (is_its_own and await server.is_there()):
                    raise  # of this row, not of the server
                self._leave(server, error)
                continue
            if found is not None:
                return found

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        """Log-probs of given tokens, by any server."""
        return await (await self._choose()).lm.score(prompt_ids, response_ids)

    async def _choose(self) -> Server:
        """The group's own server, or the one with the fewest tokens in flight."""
        if not any(server.answers for server in self.servers):
            async with self._renewing:
                await self._revive()
        ready = [server for server in self.servers if server.answers]
        group = home.get() or Home()
        if group.server not in ready:
            group.server = min(ready, key=lambda server: server.tokens)
        chosen: Server = group.server
        return chosen

    def _leave(self, server: Server, error: BaseException) -> None:
        if server.answers:
            server.leave(str(error))
            left, count = sum(one.answers for one in self.servers), len(self.servers)
            logger.warning(
                "%r left the rotation; %d of %d are left: %s", server, left, count, error
            )

    async def _revive(self) -> None:
        """Where none answers: start them again if somebody can; else there is nobody to ask."""
        if any(server.answers for server in self.servers):
            return
        if self.restart is not None:
            await gather([partial(self._started_again, server) for server in self.servers])
        if not any(server.answers for server in self.servers):
            why = "; ".join(f"{server!r}: {server.out}" for server in self.servers)
            raise NoServers(
                f"none of {counted(len(self.servers), 'sampling server')} answers: {why}. Start one "
                "and run the same command again"
            )

    # --- weights

    async def update_weights(
        self, version: int, weights: Mapping[str, Tensor], canary: Sequence[float]
    ) -> None:
        """Give every server these weights, also one that had left, and see that its workers have them."""
        async with self._renewing:
            self._wanted, by_folder = version, self.settings.weights == "folder"
            checksum = await anyio.to_thread.run_sync(self._write, weights, by_folder)
            dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
            kept = {} if by_folder else weights
            self._sent = Sent(version, kept, checksum, dtype, tuple(canary))
            await gather([partial(self._bring, server) for server in self.servers])
            await self._revive()

    def _write(self, weights: Mapping[str, Tensor], by_folder: bool) -> str:
        """Replace the folder's weights; the checksum of what is sent, where a server may tell it."""
        from burnish.lm.weights import INDEX, WEIGHTS, weights_checksum, write_weights

        if by_folder:
            folder = Path(self.settings.folder)
            here = {name: tensor.detach().to("cpu") for name, tensor in weights.items()}
            write_weights(folder / WEIGHTS, here)
            (folder / INDEX).unlink(missing_ok=True)
        return weights_checksum(weights.items()) if self.settings.version_path else ""

    async def _bring(self, server: Server) -> None:
        """The newest weights into one server: tried twice, then started again, then refused."""
        if not server.answers and not await server.is_there():
            return
        for is_last in (False, True):
            try:
                await self._load(server)
                return
            except (Unreachable, TimedOut) as error:
                self._leave(server, error)
                return
            except Unsupported as error:
                raise UserError(
                    f"nobody can tell whether {server!r} has the weights that it is sent: {error}; "
                    "expected prompt_logprobs or echo, or sampler.version_path with weights_checksum"
                ) from error
            except ModelError as error:
                # What it answered meanwhile came from weights that nobody knows.
                self._leave(server, error)
                if is_last and self.restart is not None:
                    await self._started_again(server)
                elif is_last and isinstance(error, OtherWeights):
                    raise

    async def _started_again(self, server: Server) -> None:
        assert self.restart is not None
        server.leave("it is started again")
        logger.warning("%r is started again", server)
        await self.restart(server.url)
        await server.connect()
        await self._load(server)

    async def _load(self, server: Server) -> None:
        with server.unsure():
            await server.load(self._sent.version, self._sent.weights)
            if self.verify:
                await self._verify(server)
        if not server.answers:
            logger.warning("%r is back with weights %d", server, self._sent.version)
        server.out, server.version = "", self._sent.version

    async def _verify(self, server: Server) -> None:
        """Hold what the workers have against what was sent."""
        path = self.settings.version_path or server.version_path
        said = await server.desk.control("GET", path) if path else {}
        named, found = str(said.get("weight_version")), said.get("weights_checksum")
        sent = self._sent
        if path and named != str(sent.version):
            raise OtherWeights(
                f"{server!r} says that its weights are of version {named[:40]}, right after it was "
                f"given version {sent.version}; does another run update this server?"
            )
        if found is not None and sent.checksum:
            if found != sent.checksum:
                raise OtherWeights(
                    f"{server!r} has weights with checksum {str(found)[:40]}, right after it was given "
                    f"version {sent.version} with {sent.checksum}; does another run update it, or "
                    f"write into {self.settings.folder}?"
                )
            return
        if sent.canary:
            await self._listen(server)

    async def _listen(self, server: Server) -> None:
        """The canary's log-probs, by the workers and by the trainer."""
        sent, (before, then) = self._sent, server.heard
        found = (await server.desk.score(self.canary[:1], self.canary[1:])).logprobs
        apart, most = _apart(found, sent.canary), TOLERANCE[sent.dtype]
        # Coarse types hide small steps; workers that say the same to the bit took no step at all.
        is_stuck = found == before and _apart(then, sent.canary) > MOVED * most
        if apart > most or is_stuck:
            raise OtherWeights(
                f"{server!r} was given weights {sent.version} and its workers do not have them: the "
                f"canary's log-probs are {apart:.4g} nats a token apart from the trainer's, expected at "
                f"most {most:g} of {sent.dtype}{' and other ones than before' * is_stuck}. "
                f"{server.remedy * (self.settings.weights == 'folder')}"
            )
        server.heard = found, sent.canary


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Mean distance; NaN is as far as can be."""
    mean = sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)
    return math.inf if math.isnan(mean) else mean


def open_sampler(settings: Remote, *, loop: Callable[..., None], **options: Any) -> Servers:
    """The servers of a run, each reached; `options` are those of `Servers`."""
    told = served()
    if told is not None and told.samplers:
        options["restart"] = told.start_again
    servers = Servers(settings, **options)
    try:
        loop(servers.connect)
    except ModelError as error:
        start = DIALECTS[settings.dialect].start % shown_path(Path(settings.folder))
        raise ModelError(f"the sampler cannot be reached: {error}. Start it: {start}") from error
    return servers
