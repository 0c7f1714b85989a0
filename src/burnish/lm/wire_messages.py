"""Messages in the OpenAI-style protocol: text, images and sounds, out and in.

    message_body(message, blobs)          # with the bytes of its media: a server cannot see our files
    read_content(content, blobs)          # the other way; media are stored in `blobs`

Images and sounds of a request are counted and weighed before any of them is read (`check_media`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from burnish.errors import UserError
from burnish.lm.base import TooMuchMedia
from burnish.records import AudioPart, Content, ImagePart, Message, TextPart

if TYPE_CHECKING:
    from burnish.store.blobs import Blobs


class MediaLimits(Struct, frozen=True, kw_only=True):
    """How many images and sounds one request may hold, and how large they may be together."""

    count: int = 16
    megabytes: float = 20.0
    """Of the files; the request's text is a third larger."""

    def __post_init__(self) -> None:
        if not (type(self.count) is int and self.count >= 0):
            raise UserError(f"media_count is {self.count!r}; expected a whole number, 0 or more")
        if not (isinstance(self.megabytes, int | float) and 0 <= self.megabytes <= 1024):
            raise UserError(f"media_mb is {self.megabytes!r}; expected megabytes, 0 to 1024")


def message_body(message: Message, blobs: Blobs | None) -> dict[str, Any]:
    """A message as a chat request holds it; images and sounds are read from `blobs`."""
    body: dict[str, Any] = {"role": message.role, "content": _content(message.content, blobs)}
    if message.name is not None:
        body["name"] = message.name
    if message.tool_calls:
        body["tool_calls"] = list(message.tool_calls)
    return body


def check_media(messages: Sequence[Message], blobs: Blobs | None, limits: MediaLimits) -> None:
    """Refuse a prompt with too many or too large images and sounds; nothing is read for it."""
    total, held = 0, 0
    for place, message in enumerate(messages):
        for part in message.media:
            held += 1
            if held > limits.count:
                count = sum(len(one.media) for one in messages)
                raise TooMuchMedia(
                    f"the prompt holds {count} images and sounds; expected at most {limits.count} a "
                    "request (media_count).",
                    "Raise it if the server takes more, or send fewer.",
                )
            if blobs is None or not blobs.holds(part.sha256):
                continue
            size = blobs.path(part.sha256).stat().st_size
            total += size
            if total > limits.megabytes * 1e6:
                others = "" if total == size else f", {total / 1e6:.1f} MB with those before it"
                raise TooMuchMedia(
                    f"{part.media_type} {part.sha256[:12]} of message {place} ({message.role}) has "
                    f"{size / 1e6:.1f} MB{others}; expected at most {limits.megabytes:g} MB a "
                    "request (media_mb).",
                    "Raise it if the server takes more, or make the file smaller.",
                )


AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg"}
"""The protocol's names for kinds of sound."""


def _content(content: Content, blobs: Blobs | None) -> str | list[dict[str, Any]]:
    """Text as it is; parts with their bytes in them: a server cannot see our files."""
    if isinstance(content, str):
        return content
    return [_part(part, blobs) for part in content]


def _part(part: TextPart | ImagePart | AudioPart, blobs: Blobs | None) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if blobs is None:
        raise UserError(
            f"a message holds {part.media_type} {part.sha256[:12]}, and this model was opened "
            "without media; pass blobs=, the folder that holds its bytes"
        )
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
    if not isinstance(content, list):
        raise UserError(f"content is {type(content).__name__}; expected text or a list of parts")
    return tuple(_read_part(part, blobs) for part in content)


def _read_part(part: Any, blobs: Blobs) -> TextPart | ImagePart | AudioPart:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image", "audio"):
        try:
            own: ImagePart | AudioPart = msgspec.convert(part, ImagePart | AudioPart)
        except msgspec.ValidationError as error:
            raise UserError(
                f"a part of type '{kind}': {error}; expected its sha256 and media_type, or image_url "
                "or input_audio with the bytes"
            ) from None
        return own
    inner = part.get(kind) if kind in ("text", "image_url", "input_audio") else None
    if kind == "text" and isinstance(inner, str):
        return TextPart(inner)
    given = ""
    if kind == "image_url":
        url = inner.get("url") if isinstance(inner, dict) else inner
        head, mark, given = str(url).partition(";base64,")
        if not mark or not head.startswith("data:"):
            raise UserError(
                f"image_url is {head[:40]!r}; expected data:image/png;base64,... with the bytes"
            )
    elif kind == "input_audio" and isinstance(inner, dict):
        given = str(inner.get("data", ""))
    else:
        raise UserError(
            f"a part of type {str(kind)[:40]!r}; expected text, image_url or input_audio"
        )
    try:
        data = base64.b64decode(given, validate=True)
    except ValueError:
        raise UserError(f"the bytes of an {kind} part are not base64") from None
    return blobs.add(data)
