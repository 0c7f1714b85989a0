"""A server that samples with the trainer's weights: vLLM or SGLang, updated between steps.

Weights travel through a model folder that trainer and server both see: the file is replaced in one
go, then the server is told to load it. Start the server on that folder (`save_model` writes it):

    python -m sglang.launch_server --model-path served
    VLLM_SERVER_DEV_MODE=1 vllm serve served          # dialect="vllm": /collective_rpc needs it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from burnish.arguments import as_word
from burnish.errors import ModelError, UserError
from burnish.lm import wire
from burnish.lm.base import Completion, JsonObject, Prompt, Sampling, within_row
from burnish.lm.capabilities import Capabilities
from burnish.lm.http import OpenAILM
from burnish.lm.jobs import Answer, Job

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.lm.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Dialect(StrEnum):
    """How a server is told to load its weights again."""

    SGLANG = "sglang"
    """`POST /update_weights_from_disk` with the folder and the version."""
    VLLM = "vllm"
    """`POST /collective_rpc` with `reload_weights`, then `POST /reset_prefix_cache`."""


class StaleWeights(ModelError):
    """The server's weights lag behind the trainer's by more than is allowed."""


class OtherWeights(ModelError):
    """The server does not have the weights that were sent to it."""


class RemoteSampler(OpenAILM):
    """The `Sampler` protocol over HTTP; options beyond these are those of `OpenAILM`."""

    is_remote = True
    """Its calls do not meet in a batch here."""

    def __init__(
        self,
        base_url: str,
        model: str = "",
        *,
        folder: Path,
        dialect: Dialect | str = Dialect.SGLANG,
        version: int = 0,
        max_staleness: int = 0,
        version_path: str = "",
        tokenizer: Tokenizer | None = None,
        longest_row: Callable[[int], int] | None = None,
        **options: Any,
    ) -> None:
        """`folder` is the model folder the server was started on, `version` that of its weights.

        With a `tokenizer`, sessions send the tokens of a conversation and not its messages. Given
        the length of a prompt, `longest_row` says how many tokens the model reads and writes; an
        empty `model` is the only one that the server has, once `connect` has asked.
        """
        # Training needs the sampled ids and their log-probs; both servers have them.
        options.setdefault("capabilities", Capabilities(logprobs=True, token_ids=True))
        super().__init__(base_url, model, **options)
        if not (folder / "config.json").is_file():
            raise UserError(
                f"folder {folder} is no model folder; write it with save_model, start the server on it"
            )
        as_word("dialect", dialect, list(Dialect))
        self.folder, self.dialect, self.max_staleness = folder, Dialect(dialect), max_staleness
        self.version_path, self.tokenizer, self._longest_row = version_path, tokenizer, longest_row
        self._wanted = self._served = version
        self._reports = False
        """Completions have named the version of the server's weights."""
        self.checksum = ""
        """Of the weights that the server was last seen to have; empty before the first update."""
        self.stale_completions = 0
        """Completions sampled with older weights than the trainer's, within the bound."""

    @property
    def weight_version(self) -> int:
        """The version of the weights that the server samples with."""
        return self._served

    @property
    def staleness(self) -> int:
        """Versions by which the server's weights lag behind the trainer's."""
        return self._wanted - self._served

    @property
    def identity(self) -> str:
        """Changes with the weights: what was sampled before is another model's."""
        return f"{super().identity} {self._served}"

    async def connect(self) -> None:
        """Reach the server and find the model's name, where none was given."""
        listed = await self.list_models()
        if self.model:
            return
        if len(listed) != 1:
            raise UserError(
                f"{self!r} serves {', '.join(listed) or 'no model'}; name the one (sampler.model)"
            )
        self.model = listed[0]

    async def update_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write the weights into the folder and have the server load them.

        A failure is raised once the server's weights lag by more than `max_staleness` versions, and
        at once where the server has other weights than were sent.
        """
        self._wanted = version
        try:
            sent = await anyio.to_thread.run_sync(self._write, tensors)
            if self.dialect is Dialect.SGLANG:
                body = {"model_path": str(self.folder), "weight_version": str(version)}
                reply = await self._control("POST", "/update_weights_from_disk", body)
                if reply.get("success") is not True:
                    said = wire.excerpt(str(reply.get("message", "")).encode(), self._key)
                    raise ModelError(f"{self!r} did not load weights {version}: {said}")
            else:
                await self._control("POST", "/collective_rpc", {"method": "reload_weights"})
                # Cached prefixes were computed with the old weights.
                await self._control("POST", "/reset_prefix_cache", {})
            await self._verify(version, sent)
        except OtherWeights:
            raise
        except ModelError as error:
            if self.staleness > self.max_staleness:
                raise
            logger.warning("the server keeps the weights of version %d: %s", self._served, error)
            return
        self._served, self.checksum = version, sent

    def follow(self, version: int, served: int) -> None:
        """Note the trainer's version and the server's, where this process did not update it."""
        self._wanted, self._served = version, served

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Completions that carry the version of the weights they were sampled with."""
        if self.staleness > self.max_staleness:
            raise StaleWeights(
                f"{self!r} samples with weights of version {self._served}, {self.staleness} behind "
                f"the trainer's; expected at most max_staleness={self.max_staleness}. Update them"
            )
        # Before the request: an update while it runs must not make its tokens look newer.
        version = self._served
        if self._longest_row is not None and wire.is_token_ids(prompt):
            sampling = within_row(self.name, len(prompt), self._longest_row(len(prompt)), sampling)
        completions = await super().sample(prompt, sampling)
        if version < self._wanted:
            self.stale_completions += len(completions)
        if any(c.weight_version is not None for c in completions):
            self._reports = True
            return completions
        # A server that named its version before and does not now was started again without it.
        version = -1 if self._reports else version
        return [msgspec.structs.replace(c, weight_version=version) for c in completions]

    def _write(self, tensors: Iterable[tuple[str, Tensor]]) -> str:
        """Replace the folder's weights; returns their checksum."""
        from burnish.lm.weights import INDEX, WEIGHTS, weights_checksum, write_weights

        weights = {name: tensor.detach().to("cpu") for name, tensor in tensors}
        write_weights(self.folder / WEIGHTS, weights)
        (self.folder / INDEX).unlink(missing_ok=True)
        return weights_checksum(weights.items())

    async def _verify(self, version: int, sent: str) -> None:
        """Hold what the server read against what was sent."""
        from burnish.lm.weights import WEIGHTS, read_weights, weights_checksum

        said = await self._control("GET", self.version_path) if self.version_path else {}
        named = str(said.get("weight_version")) if self.version_path else str(version)
        found = said.get("weights_checksum")
        if found is None:
            file = self.folder / WEIGHTS
            found = await anyio.to_thread.run_sync(
                lambda: weights_checksum(read_weights(file).items())
            )
        if found != sent or named != str(version):
            raise OtherWeights(
                f"{self!r} says that its weights are of version {named[:40]} and has checksum "
                f"{str(found)[:40]}, right after it was given version {version} with {sent}; does "
                f"another run update this server, or write into {self.folder}?"
            )

    async def _control(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        """One request beside the OpenAI routes, with the pool's deadline and retries."""
        content = None if body is None else msgspec.json.encode(body)

        async def request(job: Job) -> Answer[JsonObject]:
            data = await self._send(method, path, content, root=True)
            return Answer(wire.decode(data or b"{}", JsonObject, path, secret=self._key))

        return await self.pool.call(self._job(path), request)
