"""Images from files and bytes, as a model may see them: one still picture in RGB.

The kind is read from the bytes, never from the name, and only that decoder is used. The size is
checked before a pixel is decoded. The orientation of a photograph is applied, transparency is laid
on white, palettes, CMYK and 16 bit become RGB: what a person sees in the viewer is what a model sees.
Animations are refused: a person would see other frames than the model.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import SEEK_CUR
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.errors import UserError, first_line
from burnish.media.kinds import (
    HEAD_BYTES,
    media_type_of,
    open_source,
    refuse_foreign,
    short_name,
)

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 50_000_000
"""Of one image: 150 MB in memory. A photograph has 12 to 48 million."""
MOST_SIDE = 32_767

_PLUGINS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
    "image/gif": "GIF",
}


class ImageInfo(NamedTuple):
    """What an image's header says."""

    media_type: str
    width: int
    height: int


def image_info(source: str | Path | bytes) -> ImageInfo:
    """Kind and size of an image, before its orientation is applied; no pixel is decoded."""
    with _opened(source) as (image, kind, _):
        return ImageInfo(kind, *image.size)


def open_image(source: str | Path | bytes) -> Image:
    """An image in RGB, upright, decoded whole; a cut or damaged file is refused.

    >>> from io import BytesIO
    >>> from PIL import Image
    >>> into = BytesIO()
    >>> Image.new("RGBA", (2, 1), (0, 0, 0, 0)).save(into, "PNG")
    >>> open_image(into.getvalue()).getpixel((0, 0))        # transparent: the white below it
    (255, 255, 255)
    """
    with _opened(source) as (image, kind, where):
        try:
            if kind == "image/png":
                _prepare_png(image)
            image.load()
            return _upright(_as_rgb(image), image, kind)
        # The boundary to Pillow's decoders, which meet whatever the file holds.
        except Exception as error:
            raise UserError(
                f"{where} is a {short_name(kind)} cut off or damaged: {first_line(error)}"
            ) from error


@contextmanager
def _opened(source: str | Path | bytes) -> Iterator[tuple[Any, str, str]]:
    """The image with its header read, its kind, and how errors call it."""
    raw, where, _ = open_source(source, "an image")
    with raw:
        head = raw.read(HEAD_BYTES)
        kind = media_type_of(head)
        if kind not in _PLUGINS:
            raise refuse_foreign(where, head, "a PNG, JPEG, WebP or GIF image")
        raw.seek(0)
        library = _pillow()
        library.init()
        # Not Image.open: it tries every decoder, and warns or raises at limits of its own.
        factory = library.OPEN[_PLUGINS[kind]][0]
        try:
            image = factory(raw, "")
        except Exception as error:  # the boundary to Pillow's readers of headers
            raise UserError(
                f"{where} is no whole {short_name(kind)}: {first_line(error)}"
            ) from error
        with image:
            width, height = image.size
            if not 0 < width * height <= MOST_PIXELS or max(width, height) > MOST_SIDE:
                raise UserError(
                    f"{where} has {width:,} x {height:,} pixels; expected 1 to {MOST_PIXELS:,}, and at "
                    f"most {MOST_SIDE:,} a side"
                )
            # The second picture of a JPEG is a preview or the other eye's view. No readable second
            # frame: whether the first one is whole shows when it is decoded.
            with suppress(OSError, EOFError, SyntaxError, ValueError):
                if kind != "image/jpeg" and getattr(image, "is_animated", False):
                    raise UserError(f"{where} is an animation; expected a still image")
            yield image, kind, where


_CHUNK = struct.Struct(">I4s")
_ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
"""Left, top and the steps across and down of each pass of an interlaced PNG."""


def _prepare_png(image: Any) -> None:
    """Refuse pixel data that end before the picture does, and read transparency at its depth.

    Pillow leaves the rest black, and takes a transparent grey of 2, 4 or 16 bit for one of 8.
    """
    raw = image.fp
    begun = raw.tell()
    raw.seek(8)
    length, name, width, height, depth, colour, _, _, interlaced, _ = struct.unpack(
        ">I4sIIBBBBBI", raw.read(25)
    )
    if (length, name) != (13, b"IHDR"):
        raise ValueError("its first chunk is no header")
    # Of the whole picture, inflated; each line begins with a byte for its filter.
    bits, wanted = {2: 3, 4: 2, 6: 4}.get(colour, 1) * depth, 0
    for left, top, across, down in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        wide, high = -((left - width) // across), -((top - height) // down)
        if wide > 0 and high > 0:
            wanted += high * (1 + (wide * bits + 7) // 8)
    # Inflated piece by piece and not kept.
    engine, size = zlib.decompressobj(), 0
    while size < wanted and len(start := raw.read(_CHUNK.size)) == _CHUNK.size:
        length, name = _CHUNK.unpack(start)
        if name == b"IEND":
            break
        if name == b"IDAT":
            while length and size < wanted and (piece := raw.read(min(length, 1 << 16))):
                length -= len(piece)
                found = 1 << 16
                while piece or found == 1 << 16:  # a full piece may have more behind it
                    found = len(engine.decompress(piece, 1 << 16))
                    piece, size = engine.unconsumed_tail, size + found
        raw.seek(length + 4, SEEK_CUR)
    raw.seek(begun)
    if size < wanted:
        raise ValueError(f"its pixel data end after {size:,} of {wanted:,} bytes")
    clear = image.info.get("transparency")
    if colour == 0 and depth in (2, 4) and isinstance(clear, int):
        image.info["transparency"] = clear * 255 // (2**depth - 1)
    elif colour == 2 and depth == 16 and isinstance(clear, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in clear)


def _as_rgb(image: Any) -> Any:
    if image.mode in ("I", "I;16", "I;16B", "I;16L", "I;16N"):
        return _from_grey16(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        clear = image.convert("RGBA")
        white = _pillow().new("RGBA", clear.size, (255, 255, 255, 255))
        return _pillow().alpha_composite(white, clear).convert("RGB")
    return image.convert("RGB")


def _from_grey16(image: Any) -> Any:
    """Pillow's own conversion cuts everything above 255 to white, and shows what is transparent."""
    values = image.convert("I")
    shown = values.point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        from PIL import ImageChops

        given = values.convert("I;16").tobytes()
        halves = ((given[0::2], clear & 255), (given[1::2], clear >> 8))
        low, high = (
            _pillow().frombytes("L", image.size, half).point([255 * (v == one) for v in range(256)])
            for half, one in halves
        )
        shown.paste((255, 255, 255), mask=ImageChops.darker(low, high))
    return shown


def _upright(rgb: Any, image: Any, kind: str) -> Image:
    """As its EXIF orientation says; a camera writes the picture as its sensor lay.

    Not `image.getexif()`: it also reads XMP and the EXIF of WebP, which turn no picture in a browser.
    """
    place = 1
    if kind in ("image/jpeg", "image/png"):
        exif = _pillow().Exif()
        # The boundary to metadata, which is not the picture.
        with suppress(Exception):
            exif.load(image.info.get("exif"))
            place = exif.get(0x0112, 1)
    turns = (
        *("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE"),
        *("ROTATE_270", "TRANSVERSE", "ROTATE_90"),
    )
    named = dict(enumerate(turns, start=2)).get(place)
    upright: Image = rgb.transpose(getattr(_pillow().Transpose, named)) if named else rgb
    return upright


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("images need pillow. Run: pip install 'burnish[images]'") from error
    return Image
