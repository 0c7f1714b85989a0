"""What a file is, by its own first bytes: the name it came under does not count."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from burnish.arguments import as_path, refused
from burnish.errors import UserError

KNOWN = "PNG, JPEG, WebP, GIF, WAV, MP3, FLAC or Ogg"
HEAD_BYTES = 512
"""How much of a file `media_type_of` and `foreign_kind` look at."""

_SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    *((0, bytes((0xFF, second)), "audio/mpeg") for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2)),
)
"""Where each kind of file says what it is."""

SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/webp": ".webp",
    "image/gif": ".gif",
    "audio/wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/flac": ".flac",
    "audio/ogg": ".ogg",
}
"""How a file of each kind is called."""

_FOREIGN = (
    (0, b"BM", "a BMP image"),
    (0, b"II*\x00", "a TIFF image"),
    (0, b"MM\x00*", "a TIFF image"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\x00\x00\x01\x00", "an icon (ICO)"),
    (0, b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 image"),
    (0, b"%PDF", "a PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"RF64", "an RF64 sound"),
    (0, b"RIFX", "a big-endian WAV"),
    (0, b"FORM", "an AIFF sound"),
    (0, b".snd", "an AU sound"),
    (0, b"caff", "a CAF sound"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska file"),
    (4, b"ftypavif", "an AVIF image"),
    (4, b"ftyphei", "a HEIC image"),
    (4, b"ftypmif1", "a HEIC image"),
    (4, b"ftypM4A", "an M4A sound"),
    (4, b"ftyp", "an MP4 file"),
    (8, b"AVI ", "an AVI film"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file"),
)


def media_type_of(data: bytes) -> str | None:
    """The kind that the bytes themselves say they are; None for anything else.

    >>> media_type_of(b"GIF89a...")
    'image/gif'
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise refused("data", data, "bytes")
    for place, mark, kind in _SIGNATURES:
        is_riff = place == 0 or data[:4] == b"RIFF"
        if is_riff and data[place : place + len(mark)] == mark:
            return kind
    return None


def foreign_kind(data: bytes) -> str:
    """A name for bytes that are no image or sound known here.

    >>> foreign_kind(b"<svg onload='...'>")
    'SVG, XML or HTML text'
    """
    for place, mark, name in _FOREIGN:
        if data[place : place + len(mark)] == mark:
            return name
    if not data:
        return "an empty file"
    if data[:HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return "SVG, XML or HTML text"
    return f"a file of no known kind that begins {bytes(data[:8])!r}"


def short_name(media_type: str) -> str:
    """`image/png` as people say it: PNG."""
    names = {"webp": "WebP", "mpeg": "MP3", "ogg": "Ogg"}
    kind = media_type.partition("/")[2]
    return names.get(kind, kind.upper())


def refuse_foreign(where: str, head: bytes, expected: str) -> UserError:
    """The error for a file of a kind that is not read here."""
    kind = media_type_of(head)
    found = f"{short_name(kind)} ({kind})" if kind else foreign_kind(head)
    return UserError(f"{where} is {found}; expected {expected}. Convert it first")


def open_source(source: str | Path | bytes, what: str) -> tuple[BinaryIO, str, int]:
    """A file or bytes, open for reading; how errors call it; its size."""
    from io import BytesIO

    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        return BytesIO(data), f"{what} of {len(data):,} bytes", len(data)
    path = as_path("source", source, f"{what}: its path or its bytes")
    try:
        # A pipe or a device would be waited on for ever.
        if not path.is_file():
            problem = "is not a plain file" if path.exists() else "does not exist"
            raise UserError(f"{path} {problem}; expected {what} as source")
        return path.open("rb"), str(path), path.stat().st_size
    except OSError as error:
        raise UserError(f"{str(path)[:200]}: {error.strerror or error}; expected {what}") from error
