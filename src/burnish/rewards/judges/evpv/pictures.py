"""A picture as evidence: its bytes from a message, in base64 or as a data: address; never from elsewhere (EVPV).

    picture_of({"image": "data:image/png;base64,..."})          # a Picture, or one line why there is none

An address is not fetched and a path is not opened: evidence is data of a task. A task's own pictures are
parts of its messages, and lie in this machine's blobs by their hash.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import re
import reprlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from burnish.errors import StoreError, UserError
from burnish.media.images import open_image
from burnish.records import ImagePart, Message
from burnish.store.blobs import MAX_BYTES, shared_blobs

if TYPE_CHECKING:
    from burnish.rewards.judges.evpv.charts import Word

_DATA = re.compile(r"data:(?P<kind>[\w/.+-]{0,60})(?:;[\w=.+-]{0,40}){0,4},", re.ASCII)
_BACKGROUND, _BIN = 30, 16
"""Colours this near to the most common one are background; colours are counted in cubes of this side."""


def _pixels(data: bytes) -> Any:
    import numpy as np

    return np.asarray(open_image(data))


class Picture:
    """An image that has been opened: its bytes, its hash and its pixels."""

    def __init__(self, data: bytes) -> None:
        """Refuse what is no image, or has too many pixels, as `UserError`."""
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.pixels = _pixels(data)
        """Rows, columns, red green blue."""
        self.turns = 0
        """Quarter turns to the left since the file."""

    def turned(self, turns: int) -> Picture:
        """The same picture, turned to the left; boxes are still those of the file."""
        import numpy as np

        found = copy.copy(self)
        found.pixels, found.turns = np.rot90(self.pixels, turns), (self.turns + turns) % 4
        return found

    @property
    def part(self) -> ImagePart:
        """The picture as a part of a message; its bytes are in this machine's blobs afterwards."""
        found = shared_blobs().add(self.data)
        assert isinstance(found, ImagePart)
        return found

    def box(self, word: Word) -> str:
        """Where something stands in the picture, as the viewer reads it."""
        height, width = self.pixels.shape[:2]
        left, top, right, bottom = word.left, word.top, word.right, word.bottom
        sides = {
            0: (left, top, right, bottom),
            1: (height - bottom, left, height - top, right),
            2: (width - right, height - bottom, width - left, height - top),
            3: (top, width - right, bottom, width - left),
        }[self.turns]
        return f"picture {self.sha256[:12]}, box {' '.join(str(round(one)) for one in sides)}"

    @cached_property
    def _background(self) -> Any:
        import numpy as np

        cubes = (self.pixels[::4, ::4].reshape(-1, 3) // _BIN).astype(np.int64)
        codes, counts = np.unique(cubes @ np.array([256, 16, 1]), return_counts=True)
        code = int(codes[counts.argmax()])
        inside = (cubes @ np.array([256, 16, 1])) == code
        return self.pixels[::4, ::4].reshape(-1, 3)[inside].mean(axis=0)

    def colours(
        self, left: float, top: float, right: float, bottom: float
    ) -> list[tuple[tuple[int, int, int], float]]:
        """The colours of a rectangle with their shares, the background left out, most first."""
        import numpy as np

        height, width = self.pixels.shape[:2]
        rows = slice(max(0, int(top)), max(0, min(height, int(bottom) + 1)))
        columns = slice(max(0, int(left)), max(0, min(width, int(right) + 1)))
        patch = self.pixels[rows, columns].reshape(-1, 3).astype(np.int64)
        if not len(patch):
            return []
        shown = patch[np.abs(patch - self._background).sum(axis=1) > _BACKGROUND]
        cubes = (shown // _BIN) @ np.array([256, 16, 1])
        codes, counts = np.unique(cubes, return_counts=True)
        found = []
        for place in counts.argsort()[::-1][:6]:
            red, green, blue = shown[cubes == codes[place]].mean(axis=0)
            found.append(((int(red), int(green), int(blue)), float(counts[place] / len(patch))))
        return found


def picture_of(piece: Mapping[str, Any]) -> Picture | str:
    """The picture of a piece of evidence; where it cannot be opened, one line that says why."""
    try:
        return Picture(_bytes_of(piece))
    except (UserError, StoreError) as error:
        return str(error)


def _bytes_of(piece: Mapping[str, Any]) -> bytes:
    inside = piece.get("image")
    piece = inside if isinstance(inside, Mapping) else piece
    given = piece.get("image", piece.get("bytes"))
    if given is None and isinstance(piece.get("sha256"), str):
        try:
            return shared_blobs().bytes_of(piece["sha256"])
        except ValueError as error:
            raise UserError(f"evidence: {error}") from None
    if isinstance(given, bytes | bytearray):
        return bytes(given)
    if not isinstance(given, str):
        raise UserError(
            f"a picture as evidence has `image` {reprlib.repr(given):.60}; expected bytes, base64, a data: "
            "address, or `sha256` of a picture that a message holds"
        )
    if len(given) > 1.4 * MAX_BYTES + 200:
        raise UserError(
            f"a picture of {len(given):,} characters; expected at most {MAX_BYTES:,} bytes"
        )
    head = _DATA.match(given)
    if head is None and re.match(r"[a-zA-Z][\w+.-]{1,20}:", given):
        raise UserError(
            f"a picture as evidence is {given[:60]!r}: an address is not fetched. Give its bytes in "
            "base64, or an image column of the task"
        )
    try:
        return base64.b64decode(given[head.end() :] if head else given, validate=True)
    except (binascii.Error, ValueError):
        raise UserError(
            f"a picture as evidence is {given[:40]!r}...: no base64, and a path is not opened. Give "
            "its bytes, or an image column of the task"
        ) from None


def pictures_in(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The pictures of a conversation as pieces of evidence."""
    return [
        {"image": {"sha256": part.sha256}}
        for message in messages
        for part in message.media
        if isinstance(part, ImagePart)
    ]
