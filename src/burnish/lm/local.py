"""A model in this process, as an `LM`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import torch
from msgspec.structs import replace

from burnish.errors import ModelError, UserError
from burnish.lm.base import (
    Completion,
    MediaIds,
    Prompt,
    Sampling,
    Scores,
    TokenIds,
    TooLong,
    media_of,
    within_row,
)
from burnish.lm.decoder import Decoder
from burnish.lm.folder import LoadedModel, is_diffusion
from burnish.lm.model_input import ModelInput, media_names
from burnish.lm.sampler import Engine, Request
from burnish.lm.tokenizer import end_of_turn
from burnish.lm.weights import files_identity
from burnish.records import Message

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.lm.diffusion.sampler import DiffusionSampler
    from burnish.lm.generate import GenerateSampler

_SETTLED_AFTER = 3
"""Rounds of the event loop without a new call after which a batch is closed."""

_SCORED_AT_ONCE = 512
"""Positions whose full distributions are held in memory while scoring."""


class LocalLM:
    """Samples from and scores with a loaded model."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_rows: int | None = None,
        decoding: str = "",
    ) -> None:
        """`max_rows` bounds the rows decoded at once; None lets memory decide.

        `decoding` is how a diffusion model writes, such as `steps=8,order=entropy`; empty: as its
        folder says.
        """
        if loaded.score_head is not None:
            raise UserError(
                f"model '{loaded.name}' is a reward model, which writes nothing: kind = 'reward_model'"
            )
        self.loaded = loaded
        self.tokenizer = loaded.tokenizer
        self.check_media = loaded.tokenizer.check_media
        """Refuse images and sounds that this model cannot read."""
        self.weight_version = 0
        """Optimiser steps behind the weights; the trainer sets it."""
        self.name = loaded.name
        self._files = files_identity(loaded.name, loaded.folder)
        self._sampler = _sampler(loaded, self.name, max_rows, decoding)
        self._queues: tuple[object, _BatchQueue] | None = None

    @property
    def identity(self) -> str:
        """Changes with the files that were loaded and with every step of training since."""
        return f"{self._files} {self.weight_version}" if self.weight_version else self._files

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """`sampling.n` completions of messages or token ids."""
        call = _Pending(self.request(prompt, sampling))
        loop = anyio.lowlevel.current_token()
        if self._queues is None or self._queues[0] != loop:  # that of a closed loop is dropped
            self._queues = (loop, _BatchQueue())
        queue = self._queues[1]
        queue.waiting.append(call)
        try:
            async with queue.lock:
                if call.outcome is None:
                    await queue.settle()
                    calls, queue.waiting = queue.waiting, []
                    await self._sample_calls(queue, calls)
        finally:
            if call in queue.waiting:  # cancelled before it was sampled
                queue.waiting.remove(call)
        assert call.outcome is not None
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return call.outcome

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        """Log-probs of a given response; of a diffusion model a bound, see `Scores`."""
        scored = await anyio.to_thread.run_sync(self.score_batch, [(prompt_ids, response_ids)])
        return scored[0]

    def request(self, prompt: Prompt, sampling: Sampling) -> Request:
        """A checked request: the prompt as ids, the token budget within the model's context."""
        ids = self._ids(prompt)
        longest = self.loaded.module.longest_row(len(ids))
        own = within_row(self.name, len(ids), longest, sampling)
        return Request(ids, sampling, budget=own.max_tokens)

    def sample_batch(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Completions of every request, in the order given. Blocks until all are done."""
        version = self.weight_version
        return [
            [replace(completion, weight_version=version) for completion in completions]
            for completions in self._sampler.generate(requests)
        ]

    async def update_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Note the version; the tensors are not read, because the module is the trainer's own."""
        self.weight_version = version

    def release(self) -> None:
        """Free the cache; the next batch allocates it again."""
        self._sampler.release()

    def score_batch(self, pairs: Sequence[tuple[TokenIds, TokenIds]]) -> list[Scores]:
        """Untempered log-probs of responses to prompts, each as token ids."""
        if is_diffusion(self.loaded):
            return self._bounds(pairs)
        return [self._score_one(prompt, response) for prompt, response in pairs]

    def _bounds(self, pairs: Sequence[tuple[TokenIds, TokenIds]]) -> list[Scores]:
        from burnish.lm.diffusion.masked_rows import likelihood_bound
        from burnish.lm.diffusion.sampler import DiffusionSampler

        module = self.loaded.module
        assert isinstance(module, Decoder)
        assert isinstance(self._sampler, DiffusionSampler)
        mask = module.architecture.mask
        for prompt, response in pairs:
            self._check_ids(prompt)
            self._check_ids(response or prompt)
            if len(prompt) + len(response) > module.max_positions:
                raise TooLong(
                    f"a prompt of {len(prompt)} tokens and a response of {len(response)}: "
                    f"'{self.name}' reads {module.max_positions} tokens."
                )
            if mask in response:
                raise UserError(
                    f"a response holds {mask}, the mask token of '{self.name}'; use tokenizer.encode_data"
                )
        canvas = self._sampler.decoding.canvas
        end = next(iter(end_of_turn(self.loaded.tokenizer)), None)
        found = likelihood_bound(module, pairs, canvas=canvas, end=end)
        if any(one.logprob is None for one in found):
            raise self._unsound()
        return [
            Scores(one.tokens, bound_samples=one.samples, standard_error=one.standard_error)
            for one in found
        ]

    def _unsound(self) -> ModelError:
        return ModelError(
            f"'{self.name}' gives a response no finite log-prob; expected weights without NaN or "
            "infinity. Load the model's files again"
        )

    @torch.inference_mode()
    def _score_one(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        self._check_ids(prompt_ids)
        self._check_media(prompt_ids)
        if not response_ids:
            return Scores(logprobs=())
        self._check_ids(response_ids)
        module, device = self.loaded.module, self.loaded.device
        ids_1S = torch.tensor([[*prompt_ids, *response_ids]], device=device)
        positions_1S = torch.arange(ids_1S.shape[1], device=device).unsqueeze(0)
        media = media_of(prompt_ids)
        inputs = ModelInput(ids_1S[:, :-1], positions_1S[:, :-1], media=(media,) if media else None)
        hidden_TD = module(inputs)[0, len(prompt_ids) - 1 :]
        response_T1 = ids_1S[0, len(prompt_ids) :].unsqueeze(1)
        logprobs: list[float] = []
        # A few positions at a time: a long response times a large vocabulary fills any memory.
        for start in range(0, len(response_ids), _SCORED_AT_ONCE):
            part = slice(start, start + _SCORED_AT_ONCE)
            logprobs_TV = module.logits(hidden_TD[part]).float().log_softmax(dim=-1)
            logprobs += logprobs_TV.gather(1, response_T1[part]).squeeze(1).tolist()
        if not math.isfinite(sum(logprobs)):
            raise self._unsound()
        return Scores(logprobs=tuple(logprobs))

    async def _sample_calls(self, queue: _BatchQueue, calls: list[_Pending]) -> None:
        """Sample one batch in a worker thread, so that judges and tools go on meanwhile."""
        requests = [call.request for call in calls]
        try:
            results = await anyio.to_thread.run_sync(self.sample_batch, requests)
        # Boundary: whatever stops the batch belongs to every call in it, not to this task alone.
        except Exception as error:
            for call in calls:
                call.outcome = error
        except BaseException:
            # The leader was cancelled, the others were not: one of them samples the rest.
            queue.waiting[:0] = [t for t in calls if t.outcome is None]
            raise
        else:
            for call, completions in zip(calls, results, strict=True):
                call.outcome = completions

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if len(prompt) > 0 and isinstance(prompt[0], Message):
            return self.loaded.tokenizer.prompt_ids(cast(Sequence[Message], prompt))
        given = cast(TokenIds, prompt)
        ids = given if isinstance(given, MediaIds) else tuple(given)
        self._check_ids(ids)
        self._check_media(ids)
        return ids

    def _check_media(self, ids: TokenIds) -> None:
        """Placeholder tokens must be those of the media that came with them."""
        from burnish.lm.media_model import MediaDecoder

        module = self.loaded.module
        if isinstance(module, MediaDecoder):
            module.media.check(ids, media_of(ids))
        elif media := media_of(ids):
            raise UserError(
                f"'{self.name}' reads text only; got {media_names([media])}. Use a model that reads it"
            )

    def _check_ids(self, ids: TokenIds) -> None:
        """An id outside the vocabulary would read foreign memory on a GPU."""
        if len(ids) == 0:
            raise UserError("an empty prompt: expected messages or at least one token id")
        size = self.loaded.module.head_weight.shape[0]
        if min(ids) < 0 or max(ids) >= size:
            place = next(i for i, id_ in enumerate(ids) if not 0 <= id_ < size)
            raise UserError(
                f"token {place} of a prompt is {ids[place]!r}; expected an id from 0 to {size - 1}"
            )


@dataclass(eq=False)
class _Pending:
    request: Request
    outcome: list[Completion] | Exception | None = None


@dataclass
class _BatchQueue:
    """Calls of one event loop that wait to be sampled together.

    The holder of the lock samples every waiting call; a caller whose call was already sampled when
    it gets the lock just returns. So a cancelled caller never strands the others.
    """

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    waiting: list[_Pending] = field(default_factory=list)

    async def settle(self) -> None:
        """Let every task that can run do so, until no new call has come for a few rounds."""
        quiet, seen = 0, len(self.waiting)
        while quiet < _SETTLED_AFTER:
            await anyio.lowlevel.checkpoint()
            quiet = quiet + 1 if len(self.waiting) == seen else 0
            seen = len(self.waiting)


def _sampler(
    loaded: LoadedModel, name: str, max_rows: int | None, decoding: str = ""
) -> Engine | GenerateSampler | DiffusionSampler:
    """The engine for the families it knows; transformers' own generation for the others."""
    if is_diffusion(loaded):
        from burnish.lm.diffusion.sampler import DiffusionSampler, parse_decoding, read_decoding

        assert isinstance(loaded.module, Decoder)
        how = parse_decoding(decoding, read_decoding(loaded.folder))
        return DiffusionSampler(
            loaded.module, loaded.tokenizer, decoding=how, name=name, max_rows=max_rows
        )
    if decoding:
        raise UserError(
            f"decoding: got '{decoding}' for '{name}'; expected it for masked diffusion models alone"
        )
    if isinstance(loaded.module, Decoder):
        return Engine(loaded.module, loaded.tokenizer, name=name, max_rows=max_rows)
    from burnish.lm.generate import GenerateSampler

    return GenerateSampler(loaded.module, loaded.tokenizer, name=name, max_rows=max_rows)
