"""Image files that lie, burst, move and hide things, made by hand."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image


def encoded(image, kind="PNG", **options):
    into = io.BytesIO()
    image.save(into, kind, **options)
    return into.getvalue()


def picture(mode="RGB", size=(40, 30), color=None):
    return Image.new(mode, size, color if color is not None else 0)


def chunk(name, data):
    whole = name + data
    return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))


def png_of(width, height, body=b""):
    """A PNG whose header says any size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(body))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


def gif_of(frames):
    """A GIF of many frames of one pixel; 30 bytes each."""
    frame = b"!\xf9\x04\x00\x01\x00\x00\x00" + b",\0\0\0\0\x01\0\x01\0\0" + b"\x02\x02D\x01\x00"
    return b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff" + frame * frames + b";"


def text_bomb():
    """A PNG with a compressed text of 100 MB."""
    whole = encoded(picture())
    text = chunk(b"zTXt", b"c\0\0" + zlib.compress(b"\0" * 100_000_000, 9))
    return whole[:33] + text + whole[33:]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(2)</script></svg>'


def polyglots():
    """Real images that are something else as well."""
    script = b"/*" + encoded(picture(), "GIF")[6:] + b"*/=1;alert(1)"
    return {
        "gif and script": b"GIF89a" + script[2:],
        "png and zip": encoded(picture()) + b"PK\x05\x06" + b"\0" * 18,
        "jpeg and html": encoded(picture(), "JPEG", comment=b"<script>alert(1)</script>"),
        "png and html": encoded(picture()) + b"<html><script>alert(1)</script></html>",
    }
