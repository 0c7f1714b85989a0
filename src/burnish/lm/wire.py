"""The OpenAI-style protocol as bytes: request bodies out, checked replies in. No network here."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from burnish.boundary import Count, Settings
from burnish.errors import UserError
from burnish.lm.base import Completion, JsonObject, Prompt, Sampling, TooMuchMedia, chat_message
from burnish.lm.failures import (
    BadReply,
    CallFailed,
    ForeignReply,
    Refused,
    WrongModel,
    failure_of_code,
)
from burnish.records import AudioPart, Content, Finish, ImagePart, Message, TextPart
from burnish.texts import before_stop

if TYPE_CHECKING:
    from burnish.store.blobs import Blobs


class MediaLimits(Settings, frozen=True, kw_only=True):
    """How many images and sounds one request may hold, and how large they may be together."""

    count: Count = 16
    megabytes: Annotated[float, Meta(ge=0.0, le=1024.0)] = 20.0
    """Of the files; the request's text is a third larger."""


def message_body(message: Message, blobs: Blobs | None) -> JsonObject:
    """A message as a chat request holds it; images and sounds are read from `blobs`."""
    content = message.content
    shown = content if isinstance(content, str) else [_part(part, blobs) for part in content]
    return chat_message(message, shown)


def check_media(messages: Sequence[Message], blobs: Blobs | None, limits: MediaLimits) -> None:
    """Refuse a prompt with too many or too large images and sounds; nothing is read for it."""
    held = [part for message in messages for part in message.media]
    known = [part.sha256 for part in held if blobs is not None and blobs.holds(part.sha256)]
    total = sum(blobs.path(sha256).stat().st_size for sha256 in known) if blobs else 0
    if len(held) > limits.count or total > limits.megabytes * 1e6:
        raise TooMuchMedia(
            f"the prompt holds {len(held)} images and sounds of {total / 1e6:.1f} MB; expected at most "
            f"{limits.count} a request (media_count) and {limits.megabytes:g} MB (media_mb).",
            "Raise what the server takes, or send fewer or smaller ones.",
        )


AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg"}


def _part(part: TextPart | ImagePart | AudioPart, blobs: Blobs | None) -> JsonObject:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    assert blobs is not None, "a prompt with media is sent with the blobs that hold their bytes"
    data = base64.b64encode(blobs.read(part)).decode()
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}
    sound = {"data": data, "format": AUDIO_FORMATS[part.media_type]}
    return {"type": "input_audio", "input_audio": sound}


def read_content(content: Any, blobs: Blobs) -> Content:
    """The content of a message in the protocol's form; its media are stored in `blobs`.

    Only bytes that stand in the message are read: an address would be fetched from anywhere.
    """
    if isinstance(content, str):
        return content
    try:
        parts = msgspec.convert(content, list[_GivenPart])
        return tuple(
            part if isinstance(part, TextPart | ImagePart | AudioPart) else blobs.add(part.data)
            for part in parts
        )
    except (msgspec.ValidationError, binascii.Error) as error:
        raise UserError(
            f"the content of a message: {error}; expected text, or parts of type text, image_url with "
            "data:image/png;base64,..., input_audio with base64 data, or image and audio by sha256"
        ) from None


class _Url(Struct):
    url: Annotated[str, Meta(pattern="^data:[^,]*;base64,")]


class _ImageUrl(Struct, tag_field="type", tag="image_url"):
    image_url: _Url

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.image_url.url.partition(",")[2], validate=True)


class _Sound(Struct):
    data: str


class _InputAudio(Struct, tag_field="type", tag="input_audio"):
    input_audio: _Sound

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.input_audio.data, validate=True)


_GivenPart = TextPart | ImagePart | AudioPart | _ImageUrl | _InputAudio


MAX_SEED = 2**31 - 1
"""Seeds are sent modulo 2**31: every server takes that many. One that takes more says so (`max_seed`)."""

FINISHES = {
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "content_filter": Finish.ERROR,
    "abort": Finish.ERROR,
    "error": Finish.ERROR,
}
"""Finish reasons that are not a plain end. Servers have many words for that one (`stop`, `eos`,
`end_turn`, none at all): whatever is not named here ended by itself."""
TOOL_CALLS = ("tool_calls", "function_call")

T = TypeVar("T")


MOST_COUNTED = 10**9
"""A count above this is no count."""


class Usage(Struct, frozen=True):
    """Tokens that the server counted; 0 where it did not."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether both were counted; a reply may have no tokens, a prompt always has some."""
        return self.prompt_tokens > 0 and self.completion_tokens > 0


class Alternative(Struct, frozen=True):
    token: str
    logprob: float


class ChatToken(Struct, frozen=True):
    token: str
    logprob: float
    top_logprobs: tuple[Alternative, ...] = ()


class Logprobs(Struct, frozen=True):
    """Both dialects: `content` of chat completions, the parallel lists of completions."""

    content: tuple[ChatToken, ...] | None = None
    tokens: tuple[str, ...] = ()
    token_logprobs: tuple[float | None, ...] = ()
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None


class ReplyMessage(Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None


class PromptLogprob(Struct, frozen=True):
    logprob: float


class WeightSpan(Struct, frozen=True):
    """The tokens `start .. end` that one version of the weights wrote."""

    version: str
    start: int
    end: int


class Choice(Struct, frozen=True):
    """One completion of either dialect."""

    index: int
    finish_reason: str | None = None
    message: ReplyMessage | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: tuple[dict[int, PromptLogprob] | None, ...] | None = None
    weight_versions: tuple[WeightSpan, ...] | None = None
    """As vLLM says it of an answer."""


class Reply(Struct, frozen=True):
    """One reply of either dialect."""

    model: str
    choices: tuple[Choice, ...]
    usage: Any = None
    """As the server gave it: odd bookkeeping is no reason to lose an answer."""
    prompt_token_ids: tuple[int, ...] | None = None
    metadata: Any = None
    """SGLang names the version of its weights here."""

    @property
    def weight_version(self) -> int | None:
        """The version of the weights that the server says it sampled with.

        None: not said, as by a server that starts ("default" is SGLang's word for it); -1: what it
        says is no version that we gave.
        """
        given = self.metadata.get("weight_version") if isinstance(self.metadata, dict) else None
        return version_of(given)

    @property
    def counted(self) -> Usage:
        """The tokens that the server counted; 0 where it gives no count."""
        return counted(self.usage)


def version_of(given: Any) -> int | None:
    """A version of weights as a server names it; None and -1 as in `Reply.weight_version`."""
    if given in (None, "default"):
        return None
    is_ours = isinstance(given, str) and given.isascii() and given.isdecimal()
    return int(given) if is_ours and len(given) <= 15 else -1


def counted(usage: Any) -> Usage:
    """The counts in a reply's `usage`, whatever that is.

    Some servers leave hidden thoughts out of `completion_tokens` and in `total_tokens`: the larger
    count is the one that is paid.
    """
    given = usage if isinstance(usage, dict) else {}
    prompt = _count(given.get("prompt_tokens"))
    written = _count(given.get("completion_tokens"))
    total = _count(given.get("total_tokens"))
    if not prompt and written:
        return Usage(max(0, total - written), written)
    return Usage(prompt, max(written, total - prompt))


def usage_in(data: bytes) -> Usage:
    """The counts in a reply that is otherwise not one."""
    content = _plain(data)
    return counted(content.get("usage") if isinstance(content, dict) else None)


def has_answer(content: Any) -> bool:
    """Whether any JSON looks like the answer of a model."""
    return isinstance(content, dict) and bool(content.get("choices"))


def is_by_a_model(data: bytes) -> bool:
    """Whether a reply that could not be read seems to be a model's: whole, or cut off."""
    content = _plain(data)
    return has_answer(content) or (content is None and b'"choices"' in data)


def _count(value: Any) -> int:
    """A number of tokens, also as a float or in quotes; 0 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN compares as False.
    return math.ceil(value) if is_number and 0 < value <= MOST_COUNTED else 0


class ModelName(Struct, frozen=True):
    id: str
    max_seed: int = 0
    """Largest seed that the server takes; 0: not said."""


class ModelList(Struct, frozen=True):
    data: tuple[ModelName, ...]


def is_token_ids(prompt: Prompt) -> bool:
    """True for token ids, False for messages; an empty prompt is a mistake."""
    if len(prompt) == 0:
        raise UserError("the prompt is empty; expected messages or token ids")
    return isinstance(prompt[0], int)


def request_body(
    model: str,
    prompt: Prompt,
    sampling: Sampling,
    *,
    logprobs: bool,
    token_ids: bool,
    blobs: Blobs | None = None,
    schema: JsonObject | None = None,
    media: MediaLimits = MediaLimits(),  # noqa: B008
    max_seed: int = 0,
) -> JsonObject:
    """The JSON of one request. A setting at its default is left out: strict servers refuse
    fields they do not know, and an absent field means the same."""
    body: JsonObject = {
        "model": model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed % ((max_seed or MAX_SEED) + 1),
    }
    if is_token_ids(prompt):
        body["prompt"] = list(prompt)
        if logprobs:
            body["logprobs"] = sampling.top_logprobs
    else:
        messages = [m for m in prompt if isinstance(m, Message)]
        check_media(messages, blobs, media)
        body["messages"] = [message_body(message, blobs) for message in messages]
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    if token_ids:
        body |= {"return_token_ids": True}
        if logprobs:
            body["return_tokens_as_token_ids"] = True
    optional = {
        "n": (sampling.n, 1),
        "top_p": (sampling.top_p, 1.0),
        "top_k": (sampling.top_k, 0),
        "min_p": (sampling.min_p, 0.0),
        "stop": (list(sampling.stop), []),
    }
    if schema is not None:
        form = {"name": "verdict", "strict": True, "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body | {name: value for name, (value, default) in optional.items() if value != default}


def is_object_of(schema: Mapping[str, Any], said: str) -> bool:
    """Whether a text is one JSON object with exactly the schema's keys, as a forced reply is."""
    found = _plain(said.encode(errors="replace"))
    return isinstance(found, dict) and set(found) == set(schema["properties"])


def decode(data: bytes, kind: type[T], where: str, *, secret: str = "") -> T:
    """A reply as its record; the error says where it differs from the protocol.

    `BadReply` where a model answered, `ForeignReply` where there is no sign of one.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        content = _plain(data)
        failure = _error_in(content, where, secret)
        if failure is None and has_answer(content) and "usage" in content:
            # A count that no number can hold is no reason to lose the answer beside it.
            content["usage"] = None
            with suppress(msgspec.ValidationError):
                return msgspec.convert(content, kind)
        if failure is None:
            failure = (BadReply if has_answer(content) else ForeignReply)(
                f"{where}: the reply has another shape than the protocol: {error}"
            )
        raise failure from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ForeignReply(
            f"{where}: the reply is not JSON: it begins {excerpt(data, secret)}"
        ) from None


def check_model(
    asked: str, got: str, accepted: Sequence[str], where: str, *, secret: str = ""
) -> None:
    """Refuse a reply by another model than the one that was asked for.

    The same name, or the name with a date, a revision or `latest` at its end, is the same model:
    `gpt-4o` may answer as `gpt-4o-2024-08-06`, never as `gpt-4o-mini`.
    """
    version = r"(-\d{3,8}(-\d{2}){0,2}|@\S+|:latest|-latest)"
    same = got == asked or got in accepted or re.fullmatch(re.escape(asked) + version, got)
    if not same:
        raise WrongModel(
            f"{where}: asked for model '{asked}', got an answer by "
            f"{excerpt(got.encode(), secret)}; "
            "name it in accept_models if both are the same"
        )


def completions_of(
    reply: Reply, asked: Sampling, *, logprobs: bool, where: str, secret: str = ""
) -> list[Completion]:
    """The reply's choices in order, each checked.

    `Refused` where the model or a filter declined all of them; one among others is a completion
    with `Finish.ERROR`, which never gets a score.
    """
    choices = sorted(reply.choices, key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(asked.n)):
        raise BadReply(
            f"{where}: asked for n={asked.n} choices, got {len(choices)} with index "
            f"{[choice.index for choice in choices][:8]}; for a server without n give capabilities=Capabilities(n=False)"
        )
    if all(_is_refused(choice) for choice in choices):
        said = choices[0].message.refusal if choices[0].message else None
        words = excerpt((said or choices[0].finish_reason or "").encode(), secret)
        raise Refused(f"{where}: the answer was refused: {words}")
    return [_completion(reply, choice, asked, logprobs, where) for choice in choices]


def text_of(reply: Reply) -> str:
    """Everything that the reply's choices say."""
    messages = [choice.message or ReplyMessage() for choice in reply.choices]
    parts = [choice.text for choice in reply.choices]
    parts += [said for message in messages for said in (message.content, message.refusal)]
    return "".join(filter(None, parts))


def with_usage(completions: list[Completion], usage: Usage, cost_usd: float) -> list[Completion]:
    """The completions with what the server counted."""
    each, rest = divmod(usage.completion_tokens, len(completions))
    first, *others = (msgspec.structs.replace(c, completion_tokens=each) for c in completions)
    first = msgspec.structs.replace(
        first, prompt_tokens=usage.prompt_tokens, completion_tokens=each + rest, cost_usd=cost_usd
    )
    return [first, *others]


def _completion(
    reply: Reply, choice: Choice, asked: Sampling, logprobs: bool, where: str
) -> Completion:
    finish = FINISHES.get(choice.finish_reason or "", Finish.STOP)
    if _is_refused(choice):
        finish = Finish.ERROR
    # Servers report log-probs at temperature 1 whatever the sampling temperature was; those are
    # what a Completion promises only when sampling at 1 or greedily.
    wanted = logprobs and asked.temperature in (0.0, 1.0) and finish is not Finish.ERROR
    values, tops = _logprobs_of(choice, asked, where) if wanted else ((), ())
    ids = choice.token_ids or ()
    spans = choice.weight_versions or ()
    versions = [version_of(span.version) for span in spans] or [reply.weight_version]
    known = [version for version in versions if version is not None]
    if ids and values and len(ids) != len(values):
        raise BadReply(f"{where}: {len(ids)} token ids with {len(values)} log-probs")
    return Completion(
        text=before_stop(_text_of(choice, finish, where), asked.stop),
        token_ids=ids or _ids_in_tokens(choice.logprobs),
        logprobs=values,
        finish=finish,
        prompt_ids=choice.prompt_token_ids or reply.prompt_token_ids or (),
        top_logprobs=tops,
        model=reply.model,
        weight_version=min(known) if len(known) == len(versions) else None,
        weight_runs=tuple((v, s.end - s.start) for v, s in zip(known, spans, strict=False))
        if len(known) == len(spans) > 1
        else (),
    )


def _is_refused(choice: Choice) -> bool:
    refusal = choice.message.refusal if choice.message else None
    return bool(refusal) or choice.finish_reason == "content_filter"


def _text_of(choice: Choice, finish: Finish, where: str) -> str:
    if choice.text is not None:
        return choice.text
    said = choice.message
    text = None if said is None else said.refusal if said.content is None else said.content
    is_whole = finish is Finish.STOP and choice.finish_reason not in TOOL_CALLS
    if said is None or (text is None and is_whole):
        raise BadReply(f"{where}: choice {choice.index} ended by itself but has no content")
    return text or ""


def _logprobs_of(
    choice: Choice, asked: Sampling, where: str
) -> tuple[tuple[float, ...], tuple[dict[int, float], ...]]:
    given = choice.logprobs
    if given is None or (given.content is None and None in given.token_logprobs):
        raise BadReply(
            f"{where}: log-probs were asked for and choice {choice.index} has none; does the server give any?"
        )
    if given.content is not None:
        values = tuple(token.logprob for token in given.content)
        rows = [{a.token: a.logprob for a in token.top_logprobs} for token in given.content]
    else:
        values = tuple(value for value in given.token_logprobs if value is not None)
        rows = [row or {} for row in given.top_logprobs or ()]
    check_logprobs(values, where)
    tops = [{token_id(t): value for t, value in row.items()} for row in rows]
    if not asked.top_logprobs or any(None in row for row in tops):
        return values, ()
    return values, tuple({i: value for i, value in row.items() if i is not None} for row in tops)


def check_logprobs(values: Sequence[float], where: str) -> None:
    """Refuse what is the log of no probability; a little above 0 is rounding."""
    if (highest := max(values, default=0.0)) > 1e-3:
        raise BadReply(f"{where}: a log-prob is {highest:g}; expected at most 0")


def _ids_in_tokens(given: Logprobs | None) -> tuple[int, ...]:
    """Ids of tokens that are written as `token_id:17`; empty where any is not."""
    if given is None:
        return ()
    tokens = given.tokens if given.content is None else [one.token for one in given.content]
    ids = [token_id(token) for token in tokens]
    return () if None in ids else tuple(i for i in ids if i is not None)


def token_id(token: str) -> int | None:
    """17 for `token_id:17`; None for a token that is given as text."""
    match = re.fullmatch(r"token_id:(\d{1,9})", token)
    return int(match[1]) if match else None


def excerpt(data: bytes, secret: str = "") -> str:
    """The beginning of a body as one quoted, printable line, without the secret."""
    if secret:
        data = data.replace(secret.encode(), b"[api key]")
    text = " ".join(data[:640].decode("utf-8", "replace").split())
    text = "".join(c if c.isprintable() else "?" for c in text)
    return f"'{text[:160]}{'...' if len(text) > 160 else ''}'" if text else "empty"


def _plain(data: bytes) -> Any:
    try:
        # Python's own reader also takes numbers that are out of range.
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _error_in(content: Any, where: str, secret: str) -> CallFailed | None:
    """The failure that a reply names in spite of its status 200, with the server's own words."""
    error = content.get("error") if isinstance(content, dict) else None
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        message = json.dumps(error, ensure_ascii=False, separators=(",", ":"))
    said = message.encode(errors="replace")  # half a character can be written in JSON
    what = f"{where}: the server answered with an error: {excerpt(said, secret)}"
    code = error.get("code") if isinstance(error, dict) else None
    # Gateways put the status of the server behind them here.
    if isinstance(code, int) and 400 <= code < 600:
        return failure_of_code(code, what)
    return ForeignReply(what)
