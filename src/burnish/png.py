"""Small pictures as PNG, without a library: for tasks that draw, and for the viewer."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from itertools import chain

PREFIX = "data:image/png;base64,"


def png_bytes(pixels: Sequence[Sequence[Sequence[int]]]) -> bytes:
    """Rows of (red, green, blue), 0 to 255, as a PNG file; the same pixels give the same bytes.

    >>> from burnish.png import png_bytes
    >>> png_bytes([[(255, 0, 0)]])[:4]
    b'\\x89PNG'
    """
    height, width = len(pixels), len(pixels[0])
    lines = b"".join(b"\0" + bytes(chain.from_iterable(row)) for row in pixels)

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def data_uri(pixels: Sequence[Sequence[Sequence[int]]]) -> str:
    """The same as text that a browser shows and a JSON file holds."""
    return PREFIX + base64.b64encode(png_bytes(pixels)).decode()
