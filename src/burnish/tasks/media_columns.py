"""Images and sounds of a row: read, checked, stored by their hash, put into the messages.

A value is bytes, Hugging Face's `{"bytes": ..., "path": ...}`, a path, or a `data:` address; a list of
these is several. A path may not leave the folder of the file, and nothing is fetched. Text says where
they stand by `<image>` and `<audio>`, or by number: `<image2>`; else they come before it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from burnish.errors import StoreError, UserError
from burnish.media import kinds
from burnish.media.images import open_image
from burnish.media.kinds import media_type_of
from burnish.media.sounds import MOST_VALUES, sound_info, stream_sound
from burnish.records import AUDIO_TYPES, AudioPart, Content, ImagePart, MediaPart, Message, TextPart
from burnish.store.blobs import MAX_BYTES, Blobs, cache_folder

ENDINGS = (*kinds.SUFFIXES.values(), ".jpeg")
PLACE = re.compile(r"<(image|audio)(\d{0,3})>")
"""Where an image or a sound stands in a text: the next one, or one by its number from 1."""
MOST_MEDIA = 64
"""Images and sounds of one row."""
_FILE_NAME = re.compile(r"[^\s@:?*]*[\w)-]\.[A-Za-z][A-Za-z0-9]{1,4}")
_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")


class CheckedBlobs(Blobs):
    """This machine's media; what comes in is decoded whole once, so that no broken file gets further."""

    def __init__(self) -> None:
        super().__init__(cache_folder() / "blobs", is_synced=False)

    def add(self, data: bytes) -> MediaPart:
        if len(data) > MAX_BYTES or self.holds(hashlib.sha256(data).hexdigest()):
            return super().add(data)
        kind = media_type_of(data)
        if kind in AUDIO_TYPES:
            # A small FLAC can hold weeks of silence, which would be decoded for hours.
            info = sound_info(data)
            if info.frames > MOST_VALUES:
                raise UserError(
                    f"a sound of {info.seconds:,.0f} s; cut it to {MOST_VALUES:,} samples"
                )
            for _ in stream_sound(data, 60.0):
                pass
        elif kind is not None:
            open_image(data)
        return super().add(data)


def read_media(value: Any, folder: Path | None, blobs: Blobs) -> list[MediaPart]:
    """The images and sounds of one column of one row; none for a null or an empty cell. Raises `UserError`."""
    values = value if isinstance(value, list | tuple) else [value]
    _check_count(len(values))
    found = []
    for one in values:
        is_null = isinstance(one, dict) and bool(one) and all(v is None for v in one.values())
        if one is not None and one != "" and not is_null:
            found.append(blobs.add(media_bytes(one, folder)))
    return found


def by_reference(value: Any, folder: Path | None, blobs: Blobs) -> Any:
    """A field's image, or its list of images, by hash; what is neither path nor bytes stays as it is."""
    if isinstance(value, list | tuple):
        is_nested = (list, tuple)
        return [
            one if isinstance(one, is_nested) else by_reference(one, folder, blobs) for one in value
        ]
    if not isinstance(value, str | bytes | dict):
        return value
    found = read_media(value, folder, blobs)
    return msgspec.to_builtins(found[0]) if found else None


def _check_count(count: int) -> None:
    if count > MOST_MEDIA:
        raise UserError(f"{count:,} images or sounds in a row; expected at most {MOST_MEDIA}")


def by_hash(content: Content, folder: Path | None, blobs: Blobs) -> tuple[MediaPart, ...]:
    """Parts that a row names by their hash, as `burnish export` writes them.

    Their bytes are on this machine already, or in files of that name.
    """
    parts = tuple(part for part in content if isinstance(part, ImagePart | AudioPart))
    for part in parts:
        name = f"{part.sha256}{kinds.SUFFIXES[part.media_type]}"
        try:
            if not blobs.holds(part.sha256):
                found = blobs.add(_from_path(name, folder))
                if found.sha256 != part.sha256:
                    raise UserError(f"{name} is damaged: its contents do not have the hash")
            blobs.read(part)  # a row may call a sound an image, and a file may be damaged
        except (UserError, StoreError) as error:
            raise UserError(f"{name} is damaged or not here ({error}); set media_folder") from None
    return parts


def holds_media(values: Iterable[Any], folder: Path | None = None) -> bool:
    """True if the values of a column `image` or `audio` are meant as such, so that it is no text.

    A file of another kind (`.m4a`), or a number beside media, is refused when it is read, not left out.
    """
    filled = [one for one in values if one is not None and one != "" and one != []]
    rest = [one for one in filled if not _is_media(one, folder)]
    if len(rest) == len(filled):
        return bool(filled) and all(map(_is_file_name, rest))
    return all(_is_file_name(one) or not isinstance(one, str | list | dict) for one in rest)


def _is_media(value: Any, folder: Path | None) -> bool:
    if isinstance(value, list):
        return any(_is_media(one, folder) for one in value)
    if isinstance(value, dict):
        return "bytes" in value and set(value) <= {"bytes", "path"}
    if isinstance(value, str):
        is_named = value.startswith("data:") or value.lower().endswith(ENDINGS)
        return is_named or _is_file(value, folder)
    return isinstance(value, bytes)


def _is_file_name(value: Any) -> bool:
    """A path with an ending that nobody takes for a number, a version or an address."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_file_name, value))
    return isinstance(value, str) and _FILE_NAME.fullmatch(value) is not None


def _is_file(value: str, folder: Path | None) -> bool:
    if folder is None or not {".", "/"} & set(value):
        return False
    try:
        return (folder / value).is_file()
    except (OSError, ValueError):  # too long, a NUL inside
        return False


def placed(messages: Sequence[Message], media: Sequence[MediaPart]) -> tuple[Message, ...]:
    """The messages with each image and sound at its place; raises `UserError` where they differ.

    >>> picture = ImagePart("0" * 64)
    >>> (message,) = placed([Message("user", "Is <image> red?")], [picture])
    >>> [part if isinstance(part, ImagePart) else part.text for part in message.content][::2]
    ['Is ', ' red?']
    """
    _check_count(len(media))
    places = [found.groups() for message in messages for found in _places(message)]
    if not places and media:
        first = next((k for k, message in enumerate(messages) if message.role == "user"), None)
        if first is None:
            raise UserError("images or sounds but no user message to put them into")
        turned = replace(messages[first], content=(*media, *_parts(messages[first])))
        return (*messages[:first], turned, *messages[first + 1 :])
    waiting: dict[str, list[MediaPart]] = {
        "image": [part for part in media if isinstance(part, ImagePart)],
        "audio": [part for part in media if isinstance(part, AudioPart)],
    }
    if places:
        for kind, parts in waiting.items():
            _check_places(kind, [number for name, number in places if name == kind], len(parts))
    following = {kind: iter(parts) for kind, parts in waiting.items()}
    return tuple(_filled(message, waiting, following) for message in messages)


def _parts(message: Message) -> Sequence[Any]:
    content = message.content
    return (TextPart(content),) if isinstance(content, str) else content


def _check_places(kind: str, numbers: list[str], count: int) -> None:
    named = {int(number) for number in numbers if number}
    got = numbers.count("") or len(named)
    is_mixed = "" in numbers and named
    if is_mixed or got != count or (named and named != set(range(1, count + 1))):
        shown = ", ".join(dict.fromkeys(f"<{kind}{number}>" for number in numbers[:4]))
        raise UserError(
            f"{count} {kind} file(s), {got} place(s) {shown}; expected as many, or none"
        )


def _places(message: Message) -> Iterator[re.Match[str]]:
    for part in _parts(message):
        if isinstance(part, TextPart):
            yield from PLACE.finditer(part.text)


def _filled(
    message: Message,
    media: dict[str, list[MediaPart]],
    following: dict[str, Iterator[MediaPart]],
) -> Message:
    if not any(_places(message)):
        return message
    parts: list[TextPart | MediaPart] = []
    for part in _parts(message):
        if not isinstance(part, TextPart):
            parts.append(part)
            continue
        end = 0
        for found in PLACE.finditer(part.text):
            if before := part.text[end : found.start()]:
                parts.append(TextPart(before))
            kind, number = found.groups()
            parts.append(media[kind][int(number) - 1] if number else next(following[kind]))
            end = found.end()
        if rest := part.text[end:]:
            parts.append(TextPart(rest))
    return replace(message, content=tuple(parts))


def media_bytes(value: Any, folder: Path | None) -> bytes:
    """The bytes of one image or sound of a row; paths start at `folder`. Raises `UserError`."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and set(value) <= {"bytes", "path"}:
        inside = value.get("bytes")
        return media_bytes(inside if inside is not None else value.get("path"), folder)
    if isinstance(value, str) and value[:5].lower() == "data:":
        head, mark, given = value.partition(";base64,")
        with contextlib.suppress(ValueError):
            if mark:
                return base64.b64decode(given, validate=True)
        raise UserError(f"{head[:40]!r}; expected data:image/png;base64,... with bytes as base64")
    if isinstance(value, str) and value and not _ADDRESS.match(value):
        return _from_path(value, folder)
    raise UserError(f"{value!r:.60}; expected bytes, {{bytes, path}}, a path or a data: address")


def _from_path(value: str, folder: Path | None) -> bytes:
    if folder is None:
        raise UserError(f"the path {value[:60]!r} in a row that comes from no file; give the bytes")
    root = folder.resolve()
    try:
        path = (root / value).resolve()
        # A row must not reach for the other pictures of this machine, also not by a link.
        if not path.is_relative_to(root):
            raise UserError(f"the path {value[:60]!r} leads out of {folder}; set media_folder")
        # A pipe would be waited on for ever.
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} is not there, no file, or larger than {MAX_BYTES:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # too long, a NUL inside, a loop of links, no permission
        raise UserError(f"{value[:60]!r} is no path to a file ({type(error).__name__})") from None
