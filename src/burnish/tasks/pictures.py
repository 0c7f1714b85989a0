"""Pictures that are drawn with their facts, and questions whose answers follow from these.

A picture's bytes are the same on every machine: shapes are drawn without smoothing, letters come from
Pillow's own bitmap font, and the PNG is written here, uncompressed (25 kB at 224 pixels), because the
output of zlib differs between versions. A picture is held out by a hash of what it shows.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from burnish.boundary import Name
from burnish.errors import UserError
from burnish.records import Message, Task, TextPart
from burnish.seeds import derive, digest
from burnish.tasks.base import EndlessTasks, TaskSettings, is_held_out

PALETTE = {
    "white": (255, 255, 255),
    "black": (20, 20, 20),
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 97, 200),
    "yellow": (240, 200, 20),
    "purple": (140, 60, 170),
    "orange": (245, 130, 30),
    "grey": (205, 205, 205),
}
COLOURS = ("red", "green", "blue", "yellow", "purple", "black")
"""Of things that are asked about."""
DESCRIBE = "describe"
TRIES = 2_000
Form = Literal["rectangle", "ellipse", "polygon"]


class Asked(NamedTuple):
    """A question about a picture."""

    kind: str
    question: str
    answer: str


class Picture(Protocol):
    """What a picture shows, and how it is drawn."""

    @property
    def key(self) -> str:
        """Equal for pictures that show the same."""
        ...

    @property
    def facts(self) -> list[str]:
        """Everything that is true of it, one sentence each."""
        ...

    @property
    def description(self) -> str:
        """The facts in one paragraph, always in the same order."""
        ...

    def ask(self, kind: str, rng: random.Random) -> Asked | None:
        """A question of one kind; None where this picture allows none."""
        ...

    def png(self) -> bytes: ...


class Sheet:
    """A square of palette colours to draw on."""

    def __init__(self, size: int) -> None:
        image, draw, _ = _pillow()
        self.size = size
        self._image = image.new("P", (size, size), 0)
        self._draw = draw.Draw(self._image)

    def draw(self, shape: Form, points: Sequence[int], colour: str) -> None:
        """A filled shape: the box around it, or its corners, x and y in turn."""
        getattr(self._draw, shape)(list(points), fill=_index(colour))

    def line(self, points: Sequence[tuple[int, int]], colour: str, width: int = 1) -> None:
        self._draw.line(list(points), fill=_index(colour), width=width)

    def text(self, x: int, y: int, text: str, colour: str = "black", scale: int = 2) -> None:
        """Letters of Pillow's bitmap font, enlarged, centred on (x, y)."""
        image, draw, fonts = _pillow()
        font = fonts.load_default_imagefont()  # pixels; those of TrueType depend on FreeType
        left, top, right, bottom = (int(n) for n in font.getbbox(text))
        mask = image.new("1", (max(1, right - left), max(1, bottom - top)), 0)
        draw.Draw(mask).text((-left, -top), text, fill=1, font=font)
        mask = mask.resize((mask.width * scale, mask.height * scale), 0)
        across, down = x - mask.width // 2, y - mask.height // 2
        box = (across, down, across + mask.width, down + mask.height)
        self._image.paste(_index(colour), box, mask)

    def png(self) -> bytes:
        """The picture as a PNG of four bits a pixel, the same bytes everywhere."""
        return indexed_png(self._image.tobytes(), self.size, list(PALETTE.values()))


def indexed_png(pixels: bytes, size: int, palette: Sequence[tuple[int, int, int]]) -> bytes:
    """A square PNG of palette indices below 16, one byte a pixel; `size` is even. Not compressed."""
    # Two pixels a byte, all at once: the even pixels' halves moved up by four bits beside the odd ones'.
    high, low = int.from_bytes(pixels[0::2], "big"), int.from_bytes(pixels[1::2], "big")
    packed = ((high << 4) | low).to_bytes(len(pixels) // 2, "big")
    width = size // 2
    rows = b"".join(b"\0" + packed[n : n + width] for n in range(0, len(packed), width))
    # A zlib stream of blocks that are stored as they are.
    blocks = [rows[n : n + 65_535] for n in range(0, len(rows), 65_535)]
    body = b"".join(
        struct.pack("<BHH", n == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for n, block in enumerate(blocks)
    )
    data = b"\x78\x01" + body + struct.pack(">I", zlib.adler32(rows))
    head = struct.pack(">IIBBBBB", size, size, 4, 3, 0, 0, 0)
    colours = bytes(value for colour in palette for value in colour)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, part in ((b"IHDR", head), (b"PLTE", colours), (b"IDAT", data), (b"IEND", b"")):
        png += struct.pack(">I", len(part)) + kind + part
        png += struct.pack(">I", zlib.crc32(kind + part))
    return png


def _index(colour: str) -> int:
    return list(PALETTE).index(colour)


def _pillow() -> tuple[Any, Any, Any]:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise UserError("drawing pictures needs pillow: pip install 'burnish[images]'") from None
    return Image, ImageDraw, ImageFont


class PictureSettings(TaskSettings, frozen=True, kw_only=True):
    """Settings that every kind of drawn picture has."""

    name: Name = "pictures"
    """What the task is called in runs."""
    questions: tuple[str, ...] = ()
    """Kinds of questions, asked in turn."""
    held_out_share: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.1
    """Share of all pictures that is never trained on."""
    held_out_size: Annotated[int, Meta(ge=1, le=100_000)] = 200
    """Held-out questions, each about its own picture."""
    instruction: str = "Answer briefly."
    """Follows the question; empty for the bare question."""

    def draw(self, rng: random.Random) -> Picture:
        raise NotImplementedError

    def build(self, seed: int, root: Path) -> PictureTasks:
        return PictureTasks(self, seed)


class PictureTasks(EndlessTasks):
    """Endless questions about drawn pictures; the held-out side is the same for every seed."""

    fields = frozenset({"question", "answer", "asked", "facts", "description"})

    def __init__(self, config: PictureSettings, seed: int) -> None:
        _pillow()
        self.config, self._seed = config, seed
        self.name = config.name
        self.picture(0)

    @property
    def fingerprint(self) -> str:
        return digest("pictures 1", msgspec.json.encode(self.config, order="deterministic"))

    def train(self, index: int) -> Task:
        return self._task(f"{self.name}/{index}", *self._find(index, held_out=False))

    def held_out(self, limit: int | None = None) -> list[Task]:
        size = self.config.held_out_size if self.config.held_out_share else 0
        return [
            self._task(f"{self.name}/held-out/{index}", *self._find(index, held_out=True))
            for index in range(size if limit is None else min(limit, size))
        ]

    def picture(self, index: int, *, held_out: bool = False) -> Picture:
        return self._find(index, held_out=held_out)[0]

    def _find(self, index: int, *, held_out: bool) -> tuple[Picture, Asked]:
        """A picture of one side that allows a question of the kind whose turn it is."""
        purpose = ("pictures held-out",) if held_out else (self._seed, "pictures")
        rng = random.Random(derive(*purpose, index))
        kind = self.config.questions[index % len(self.config.questions)]
        for _ in range(TRIES):
            picture = self.config.draw(rng)
            if is_held_out(picture.key, self.config.held_out_share) != held_out:
                continue
            asked = picture.ask(kind, rng)
            if asked is not None:
                return picture, asked
        raise UserError(f"tasks '{self.name}': no question of kind '{kind}' in {TRIES:,} pictures.")

    def _task(self, task_id: str, picture: Picture, asked: Asked) -> Task:
        from burnish.store.blobs import shared_blobs

        part = shared_blobs().add(picture.png())
        instruction = "" if asked.kind == DESCRIBE else self.config.instruction
        text = " ".join(filter(None, (asked.question, instruction)))
        return Task(
            id=task_id,
            messages=(Message("user", (part, TextPart(text))),),
            fields={
                "question": asked.question,
                "answer": asked.answer,
                "asked": asked.kind,
                "facts": picture.facts,
                "description": picture.description,
            },
            labels=("answer", "facts", "description"),
            source=self.name,
        )


def counted(number: int, noun: str) -> str:
    """`1 circle`, `2 circles`, `3 crosses`."""
    plural = noun if number == 1 else noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {plural}"
