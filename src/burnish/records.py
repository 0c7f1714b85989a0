"""The nouns that every room shares. Frozen, typed, JSON-able; no torch.

    Task -> LM -> Trajectory -> Scorer -> Reward -> Recipe -> update -> Store

A `Trajectory` is a list of token spans, each with an author: what was sampled is what is trained,
and text is derived from tokens, never the other way round. A `Reward` is a value *or* a status
that says why there is none; nothing in this house turns a failure into a number.

Records that cannot be part of a reference cycle (frozen, and without a dict inside) are made with
`gc=False`: the garbage collector then has a few thousand objects less to walk at every step.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from itertools import chain
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct


class Status(StrEnum):
    """How a reward came about; only `ok` carries a value.

    >>> Reward("correct", 1.0).status is Status.OK
    True
    """

    OK = "ok"
    """Scored."""
    ABSTAIN = "abstain"
    """The scorer does not apply or declines to decide."""
    TIMEOUT = "timeout"
    """The scorer ran past its deadline."""
    PARSE_ERROR = "parse_error"
    """A reply could not be read as a verdict."""
    REWARD_ERROR = "reward_error"
    """Your own reward raised; the reason has the exception and its place in your file."""
    INFRA_ERROR = "infra_error"
    """Something outside failed: a server, a process, a file."""
    REFUSED = "refused"
    """A judge or a safety layer refused to answer."""


class Author(StrEnum):
    """Who wrote a span of tokens.

    >>> [author.value for author in Author]
    ['template', 'prompt', 'model', 'tool']
    """

    TEMPLATE = "template"
    """The chat template: role markers and separators."""
    PROMPT = "prompt"
    """The task's own messages."""
    MODEL = "model"
    """Sampled from the model that is trained."""
    TOOL = "tool"
    """A tool's or an environment's observation."""


class Finish(StrEnum):
    """Why a generation ended.

    >>> Response("r", "It is 7.").finish.value
    'stop'
    """

    STOP = "stop"
    """An end-of-text token or a stop string."""
    LENGTH = "length"
    """The token budget ran out: the text is cut."""
    ERROR = "error"
    """The backend failed; there may be no text."""


class Visibility(StrEnum):
    """Who could have known the evidence.

    >>> Evidence("reference", "the answer is 7", Visibility.ORACLE).visibility.value
    'oracle'
    """

    VISIBLE = "visible"
    """Follows from the prompt and the response alone."""
    BENCHMARK = "benchmark"
    """Ships with the benchmark (tests, constraints), not with the prompt."""
    ORACLE = "oracle"
    """Contains the label or the reference answer: declared and counted."""


IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
AUDIO_TYPES = ("audio/wav", "audio/mpeg", "audio/flac", "audio/ogg")


class TextPart(Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    """A stretch of text beside media."""

    text: str


class ImagePart(Struct, frozen=True, gc=False, tag_field="type", tag="image"):
    """An image, by the SHA-256 of its bytes; the bytes lie in the run's `blobs/` folder."""

    sha256: str
    media_type: str = "image/png"

    def __post_init__(self) -> None:
        _check_media(self.sha256, self.media_type, IMAGE_TYPES)


class AudioPart(Struct, frozen=True, gc=False, tag_field="type", tag="audio"):
    """A sound, by the SHA-256 of its bytes; the bytes lie in the run's `blobs/` folder."""

    sha256: str
    media_type: str = "audio/wav"

    def __post_init__(self) -> None:
        _check_media(self.sha256, self.media_type, AUDIO_TYPES)


MediaPart = ImagePart | AudioPart
Content = str | tuple[TextPart | ImagePart | AudioPart, ...]


def _as_text(part: TextPart | ImagePart | AudioPart) -> str:
    if isinstance(part, TextPart):
        return part.text
    kind = "image" if isinstance(part, ImagePart) else "audio"
    return f"[{kind} {part.sha256[:12]}]"


def check_sha256(sha256: str) -> None:
    """Refuse what is no hash: it becomes the name of a file."""
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"sha256 is {sha256[:80]!r}; expected 64 lower-case hexadecimal digits")


def _check_media(sha256: str, media_type: str, known: tuple[str, ...]) -> None:
    check_sha256(sha256)
    if media_type not in known:
        raise ValueError(f"media_type is {media_type[:80]!r}; expected {', '.join(known)}")


class Message(Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation.

    >>> Message("user", "What is 3 + 4?").text
    'What is 3 + 4?'
    """

    role: str
    content: Content
    name: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """The content as text; an image or a sound is a mark such as `[image 3f2a91c0d1e2]`.

        The mark has the first digits of the hash, so that texts with other media differ.
        """
        if isinstance(self.content, str):
            return self.content
        return "".join(map(_as_text, self.content))

    @property
    def texts(self) -> tuple[str, ...]:
        """Its text, or the texts between its images and sounds."""
        if isinstance(self.content, str):
            return (self.content,)
        if not self.media:
            return (self.text,)
        return tuple(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """Its images and sounds, in order."""
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if not isinstance(part, TextPart))


class Task(Struct, frozen=True, omit_defaults=True):
    """One piece of work: what the model sees, and the fields that rewards may ask for by name.

    >>> Task("sum", (Message("user", "What is 3 + 4?"),), {"answer": "7"}).prompt
    'What is 3 + 4?'
    """

    id: str
    messages: tuple[Message, ...]
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    labels: tuple[str, ...] = ("answer",)
    """Names of fields that give the label away; a judge never sees them."""
    source: str = ""

    @property
    def prompt(self) -> str:
        """The last user message, as plain text."""
        return next((m.text for m in reversed(self.messages) if m.role == "user"), "")

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """Images and sounds of its messages, in order."""
        return tuple(part for message in self.messages for part in message.media)

    def for_judge(self) -> Task:
        """The same task without its label-bearing fields."""
        shown = {k: v for k, v in self.fields.items() if k not in self.labels}
        return msgspec.structs.replace(self, fields=shown, labels=())


class Response(Struct, frozen=True, omit_defaults=True):
    """What is scored: one answer to a task.

    >>> Response("r", "It is 7.", tokens=4).text
    'It is 7.'
    """

    id: str
    text: str
    finish: Finish = Finish.STOP
    tokens: int = 0
    """Length in tokens of the model that wrote it; 0 when unknown."""
    info: dict[str, Any] = msgspec.field(default_factory=dict)
    role: str = "policy"
    """Who wrote it in a rollout of several roles."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns of a multi-turn rollout behind its prompt; a single reply otherwise."""
        return _turns(self.info, self.text)


class Span(Struct, frozen=True, omit_defaults=True, gc=False):
    """Consecutive tokens by one author.

    >>> Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True).trainable
    True
    """

    author: Author
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """One per token where the model sampled them, else empty."""
    trainable: bool = False
    media: tuple[ImagePart | AudioPart, ...] = ()
    """The images and sounds that placeholder tokens in it stand for, in their order."""

    def __post_init__(self) -> None:
        if self.trainable and len(self.logprobs) != len(self.token_ids):
            raise ValueError(
                f"a trainable span needs one log-prob a token: got {len(self.logprobs)} "
                f"for {len(self.token_ids)} tokens"
            )


class Trajectory(Struct, frozen=True, omit_defaults=True):
    """One rollout of one role, as the tokens that were really seen and sampled.

    >>> span = Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True)
    >>> Trajectory("t", "task", "task", (span,), "7").as_response().text
    '7'
    """

    id: str
    task_id: str
    group: str
    """Key of the baseline group: same task and same role."""
    spans: tuple[Span, ...]
    text: str
    """The model's last reply."""
    role: str = "policy"
    finish: Finish = Finish.STOP
    weight_version: int | None = None
    """Optimiser steps behind the oldest weights that sampled any of this; None: not known."""
    info: dict[str, Any] = msgspec.field(default_factory=dict)
    """Also `messages` (the turns behind the prompt), and `rewards` of an environment with their `reasons`."""
    status: Status = Status.OK
    """Anything else: the rollout failed. It has no reward and leaves its group."""
    reason: str = ""
    """Why it failed."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns behind the prompt: replies, tool results, what the environment said."""
        return _turns(self.info, self.text)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(span.token_ids for span in self.spans))

    @property
    def loss_mask(self) -> tuple[int, ...]:
        """1 on tokens that are trained, 0 on prompt, tool and injected text."""
        marks = ((int(span.trainable),) * len(span.token_ids) for span in self.spans)
        return tuple(chain.from_iterable(marks))

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The sampler's log-prob for each trained token, in order (only where the mask is 1)."""
        return tuple(chain.from_iterable(s.logprobs for s in self.spans if s.trainable))

    @property
    def trained_tokens(self) -> int:
        """How many tokens are trained: the ones of the loss mask, counted."""
        return sum([len(span.token_ids) for span in self.spans if span.trainable])

    @property
    def prompt_length(self) -> int:
        """Tokens before the first trained one."""
        count = 0
        for span in self.spans:
            if span.trainable:
                break
            count += len(span.token_ids)
        return count

    def as_response(self) -> Response:
        """What a scorer sees."""
        return Response(
            id=self.id,
            text=self.text,
            finish=self.finish if self.status is Status.OK else Finish.ERROR,
            tokens=self.trained_tokens,
            info=self.info,
            role=self.role,
        )


def _turns(info: dict[str, Any], text: str) -> tuple[Message, ...]:
    if "messages" in info:
        return msgspec.convert(info["messages"], tuple[Message, ...])
    return (Message("assistant", text),)


class Evidence(Struct, frozen=True, omit_defaults=True, gc=False):
    """One observation that a verdict rests on.

    >>> Evidence("length", "2 characters").observation
    '2 characters'
    """

    source: str
    observation: str
    visibility: Visibility = Visibility.VISIBLE
    cost_usd: float = 0.0
    error: str | None = None


class Criterion(Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing to be judged, with its weight.

    >>> Criterion("brief", "The answer is one number.", weight=2.0).weight
    2.0
    """

    id: str
    text: str
    tier: str = "core"
    weight: float = 1.0
    hard: bool = False
    scope: str = "point"


class Verdict(Struct, frozen=True, omit_defaults=True, gc=False):
    """A decision on one criterion; `value` is None where it could not be decided.

    >>> Verdict("brief", 1.0, reason="It is one number.").value
    1.0
    """

    criterion: str
    value: float | None
    confidence: float | None = None
    evidence: tuple[int, ...] = ()
    """Positions in the reward's evidence."""
    reason: str = ""


class Reward(Struct, frozen=True, omit_defaults=True, gc=False):
    """A score that explains itself: a tree whose leaves are checks, judges and functions.

    >>> seen = Evidence("length", "2 characters")
    >>> Reward("brief", 1.0, evidence=(seen,)).value
    1.0
    >>> Reward.failed("brief", Status.ABSTAIN, "no reference").value is None
    True
    """

    name: str
    value: float | None
    status: Status = Status.OK
    weight: float = 1.0
    """How much this counts in its parent."""
    parts: tuple[Reward, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        # Nearly every reward of a run is this one; the rest is to name what is wrong.
        if type(self.value) is float and self.status is Status.OK and isfinite(self.value):
            return
        if (self.value is None) == (self.status is Status.OK):
            raise ValueError(
                f"reward '{self.name}': status {self.status.value} with value {self.value}; "
                "a value belongs to status ok and to no other"
            )
        if self.value is None:
            return
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise ValueError(
                f"reward '{self.name}' is {self.value!r} of type {type(self.value).__name__}; "
                "expected a finite float. Write 1.0 or 0.0 for a yes or a no."
            )
        # Not `isfinite`, which overflows on a large int.
        if not abs(self.value) <= sys.float_info.max:
            raise ValueError(
                f"reward '{self.name}' is {self.value}; expected a finite float. "
                "Return None (abstain) if it cannot judge."
            )

    @classmethod
    def failed(cls, name: str, status: Status, reason: str, **more: Any) -> Reward:
        """No value, and why."""
        return cls(name=name, value=None, status=status, reason=reason, **more)

    @property
    def components(self) -> dict[str, float | None]:
        """The named vector that recipes with several rewards see: direct parts, or itself."""
        return {part.name: part.value for part in self.parts} or {self.name: self.value}
