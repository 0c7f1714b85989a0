"""Images and sounds by the SHA-256 of their bytes: stored once, whole or not at all, checked on read.

    part = shared_blobs().add(Path("cat.png").read_bytes())     # an ImagePart for a message
    Message("user", (TextPart("What is this?"), part))

Tasks put their media into this machine's shared folder; a run copies what its samples hold into its
own `blobs/`, so that the run's folder can be moved and read alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import StoreError, UserError
from burnish.media.kinds import KNOWN, foreign_kind, media_type_of, open_source
from burnish.records import (
    AUDIO_TYPES,
    AudioPart,
    ImagePart,
    MediaPart,
    Message,
    Task,
    check_sha256,
)
from burnish.store.durable import store_errors, write_file

MAX_BYTES = 64 * 2**20
"""Of one image or sound."""


class Blobs:
    """A folder of files named by the hash of their contents."""

    def __init__(self, folder: Path, *, is_synced: bool = True) -> None:
        """`is_synced`: wait for the disk after each file; a cache need not, which is much faster."""
        self.folder, self.is_synced = folder, is_synced

    def add(self, data: bytes) -> MediaPart:
        """Store an image or a sound; the part that stands for it in a message."""
        kind = media_type_of(data)
        if kind is None:
            raise UserError(f"{foreign_kind(data)}: no image or sound known here; expected {KNOWN}")
        if len(data) > MAX_BYTES:
            raise UserError(f"{kind} of more than {MAX_BYTES:,} bytes; make it smaller")
        sha256 = self._put(data)
        return AudioPart(sha256, kind) if kind in AUDIO_TYPES else ImagePart(sha256, kind)

    def add_file(self, path: str | Path) -> MediaPart:
        """Store an image or a sound of a file."""
        raw, _, _ = open_source(Path(path).expanduser(), "an image or a sound")
        with raw:
            data = raw.read(MAX_BYTES + 1)
        try:
            return self.add(data)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def read(self, part: MediaPart) -> bytes:
        """The bytes of a part; a damaged or foreign file is an error, never an answer."""
        data = self.bytes_of(part.sha256)
        # The type comes with the message, not with the bytes: both must agree.
        if (found := media_type_of(data) or "no image or sound") != part.media_type:
            path = self.path(part.sha256)
            raise StoreError(f"{path} is {found}; its message says {part.media_type}")
        return data

    def bytes_of(self, sha256: str) -> bytes:
        path = self.path(sha256)
        if not path.is_file():
            raise StoreError(f"{self.folder} has no file {sha256[:12]}; was it moved or removed?")
        with store_errors(f"read {path}", path):
            data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(f"{path} is damaged: its contents do not have the hash of its name")
        return data

    def path(self, sha256: str) -> Path:
        check_sha256(sha256)
        return self.folder / sha256[:2] / sha256

    def holds(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def collect(self, messages: Iterable[Message], source: Blobs) -> None:
        """Copy the media of some messages from another folder; what is here whole already stays."""
        wanted = {part.sha256: part for message in messages for part in message.media}
        for sha256, part in wanted.items():
            try:
                self.bytes_of(sha256)
            except StoreError:
                self._put(source.read(part))

    def _put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        # A power cut may have left a file of a cache empty, short or damaged.
        with suppress(OSError):
            if path.stat().st_size == len(data) and path.read_bytes() == data:
                return sha256
        with store_errors(f"make {path.parent}", path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data, is_synced=self.is_synced)
        return sha256


def held_messages(task: Task, info: Mapping[str, Any]) -> list[Message]:
    """The messages of a sample that hold media: of its task, and of the turns behind it."""
    turns = info.get("messages")
    behind = [_with_parts(turn) for turn in turns] if isinstance(turns, list | tuple) else []
    return [message for message in (*task.messages, *behind) if message and message.media]


def _with_parts(turn: Any) -> Message | None:
    """A turn whose content is parts; nearly all are texts, which are not worth decoding.

    A program may keep anything under this name: what is no message holds no media.
    """
    if isinstance(turn, Message):
        return turn
    if not isinstance(turn, dict) or not isinstance(turn.get("content"), list | tuple):
        return None
    try:
        return msgspec.convert(turn, Message)
    except msgspec.ValidationError:
        return None


def shared_blobs() -> Blobs:
    """The media of this machine's tasks."""
    return Blobs(cache_folder() / "blobs", is_synced=False)


def cache_folder() -> Path:
    """`BURNISH_CACHE` where set, else `burnish` in the user's cache folder."""
    named = os.environ.get("BURNISH_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "burnish"
