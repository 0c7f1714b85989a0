"""What every language model here can do: sample completions, and score given ones.

A prompt is messages or token ids. Token ids in, token ids out: a backend that cannot return the
ids it sampled says so with empty `token_ids`, and the training room refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from msgspec import Meta, Struct
from msgspec.structs import replace

from burnish.arguments import refused
from burnish.boundary import Count, Name, PositiveInt, PositiveShare, Seed, Settings, Share
from burnish.errors import UserError
from burnish.records import Finish, MediaPart, Message, Span

if TYPE_CHECKING:
    from torch import Tensor

JsonObject = dict[str, Any]
"""Texts and plain values, as JSON and TOML have them."""
TokenIds = Sequence[int]
Messages = Sequence[Message]
Prompt = Messages | TokenIds


class MediaIds(tuple[int, ...]):
    """Token ids with the media that their placeholder tokens stand for, in order.

    A prompt of a model that reads images or sounds. What is joined or cut is plain ids again: the
    model then refuses placeholder tokens without their media.

    >>> MediaIds([1, 2]).media
    ()
    """

    media: tuple[MediaPart, ...]

    def __new__(cls, ids: Iterable[int], media: Iterable[MediaPart] = ()) -> MediaIds:
        own = super().__new__(cls, ids)
        own.media = tuple(media)
        return own

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.media == media_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.media))

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaIds, (tuple(self), self.media)


def media_of(ids: object) -> tuple[MediaPart, ...]:
    """The media of a prompt's placeholder tokens; none of plain ids."""
    return ids.media if isinstance(ids, MediaIds) else ()


def ids_of(spans: Iterable[Span]) -> tuple[int, ...]:
    """The tokens of spans, with their media where there are some.

    >>> from burnish.records import Author
    >>> ids_of([Span(Author.PROMPT, (1, 2)), Span(Author.MODEL, (3,))])
    (1, 2, 3)
    """
    spans = tuple(spans)
    ids = tuple(token for span in spans for token in span.token_ids)
    media = tuple(part for span in spans for part in span.media)
    return MediaIds(ids, media) if media else ids


def chat_message(message: Message, content: Any) -> JsonObject:
    """A message in the form of chat templates and chat requests."""
    shown: JsonObject = {"role": message.role, "content": content}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_calls:
        shown["tool_calls"] = list(message.tool_calls)
    return shown


def refuse_unread_media(lm: object, media: Iterable[MediaPart]) -> None:
    """Refuse images and sounds that a model in this process cannot read, before it is asked."""
    check: Callable[[list[Message]], None] | None = getattr(lm, "check_media", None)
    if check is None:
        return
    for part in dict.fromkeys(media):
        check([Message("user", (part,))])


SHIPPED = ("smollm2", "tiny")
"""Models by name; a folder of that name needs a path such as `./tiny`."""

DIFFUSION = "diffusion:"
"""`diffusion:smollm2` is that model made into the start of a masked diffusion model."""

VISUAL = "visual:"
"""`visual:smollm2` is that model with an image encoder and an untrained projector before it."""


def shipped_model(name: str) -> str | None:
    """The shipped model that a name such as `smollm2` or `visual:smollm2` is made of, if any."""
    bare = name.removeprefix(DIFFUSION).removeprefix(VISUAL)
    return bare if bare in SHIPPED else None


COLDEST = 1e-6
"""The lowest temperature above 0: float32 logits divided by less overflow, and NaN is sampled."""
HOTTEST = 1e6
"""All tokens are alike long before; float32 has no number above 3e38."""


class TooLong(UserError):
    """A prompt that leaves the model no room to answer; `what` is the line without its advice."""

    def __init__(self, what: str, advice: str = "Shorten the prompt.") -> None:
        super().__init__(f"{what} {advice}")
        # Both are args, because pickle and copy rebuild an error from its args.
        self.args = (what, advice)
        self.what = what

    def __str__(self) -> str:
        return " ".join(self.args)


def within_row(name: str, prompt: int, longest: int, sampling: Sampling) -> Sampling:
    """With the token budget that the model's longest row leaves behind a prompt."""
    if prompt >= longest:
        raise TooLong(
            f"a prompt of {prompt} tokens leaves no room to answer: '{name}' reads {longest} tokens."
        )
    room = longest - prompt
    return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)


class TooMuchMedia(TooLong):
    """A prompt with more images and sounds than its model may be sent."""


class Sampling(Settings, frozen=True, kw_only=True):
    """How to sample. `temperature=0` is greedy."""

    n: PositiveInt = 1
    temperature: Annotated[float, Meta(ge=0.0, le=HOTTEST)] = 1.0
    top_k: Count = 0
    """0: off."""
    top_p: PositiveShare = 1.0
    min_p: Share = 0.0
    max_tokens: PositiveInt = 256
    stop: tuple[Name, ...] = ()
    seed: Seed = 0
    """Completion i of n depends on (seed, i) alone, never on its neighbours in a batch."""
    top_logprobs: Count = 0
    """How many alternatives per token to return, where the backend can."""

    def check(self) -> None:
        if 0 < self.temperature < COLDEST:
            raise refused("temperature", self.temperature, f"0 (greedy) or from {COLDEST:g} on")


class Completion(Struct, frozen=True, omit_defaults=True):
    """One sampled continuation, as tokens and as text."""

    text: str
    token_ids: tuple[int, ...] = ()
    """Every sampled id, the end token included when one was sampled."""
    logprobs: tuple[float, ...] = ()
    """Log-prob of each sampled token under the distribution at the sampling temperature (before
    top-k, top-p and min-p; untempered when greedy)."""
    finish: Finish = Finish.STOP
    prompt_ids: tuple[int, ...] = ()
    top_logprobs: tuple[dict[int, float], ...] = ()
    model: str = ""
    raw_logprobs: tuple[float, ...] = ()
    """Log-probs under the model's own distribution, at temperature 1; empty where not known."""
    prompt_tokens: int = 0
    """Tokens read for this completion; of n completions the first carries them. 0: not counted."""
    completion_tokens: int = 0
    """Tokens written, hidden thoughts included; 0: not counted."""
    cost_usd: float = 0.0
    weight_version: int | None = None
    """Optimiser steps behind the oldest weights that sampled this; None where they are not trained."""
    weight_runs: tuple[tuple[int, int], ...] = ()
    """Version and number of tokens, in order, of an answer that several versions wrote."""
    unmasked: tuple[int, ...] = ()
    """Of a diffusion model: the step at which each token was written. Its log-probs are those of the
    tokens at that step, given what stood there already; they do not add up to that of the text."""


class Scores(Struct, frozen=True):
    """Log-probs of given response tokens, untempered."""

    logprobs: tuple[float, ...]
    bound_samples: int = 0
    """Above 0: of a diffusion model. The log-probs add up to a lower bound of the response's, which so
    many masks estimate; one of them alone means nothing. 0: exact."""
    standard_error: float | None = None

    @property
    def is_bound(self) -> bool:
        """The sum is a lower bound and not the log-prob itself."""
        return self.bound_samples > 0


@runtime_checkable
class LM(Protocol):
    """Anything that can answer."""

    @property
    def name(self) -> str: ...

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """`sampling.n` completions of one prompt."""
        ...

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        """Log-probs of a given response, exact or marked as a bound; `ModelError` where it cannot."""
        ...


@runtime_checkable
class Sampler(LM, Protocol):
    """An LM whose weights are trained."""

    @property
    def weight_version(self) -> int:
        """The version of the weights that the next completion is sampled with."""
        ...


class RemoteSampler(Sampler, Protocol):
    """A sampler in other processes, which are given the trainer's weights."""

    @property
    def canary(self) -> TokenIds:
        """A fixed text; its log-probs tell whether a worker has the weights that were sent."""
        ...

    @property
    def staleness(self) -> int:
        """Versions by which its oldest weights lag behind the trainer's."""
        ...

    @property
    def served(self) -> tuple[int, ...]:
        """The version that each server has; -1: it is not asked."""
        ...

    async def update_weights(
        self, version: int, weights: Mapping[str, Tensor], canary: Sequence[float]
    ) -> None:
        """Sample with these weights from now on; `canary` has its text's log-probs under them."""
        ...

    def follow(self, version: int, served: Sequence[int]) -> None:
        """Note the trainer's version and what the servers have, where another process updated them."""
        ...


@dataclass(eq=False)
class Home:
    """Where the samples of one group are asked for: a server keeps their common prefix."""

    server: Any = None


home: ContextVar[Home | None] = ContextVar("burnish_home", default=None)


@contextmanager
def one_home() -> Iterator[None]:
    """Inside, all requests go to one server while it answers."""
    token = home.set(Home())
    try:
        yield
    finally:
        home.reset(token)


def model_key(lm: LM) -> tuple[str, ...]:
    """The model's name and, where it has one, its `identity`: what tells it from a namesake."""
    identity: str = getattr(lm, "identity", "")
    return (lm.name, identity) if identity else (lm.name,)
