"""What a file is, by its own first bytes, and whether a sound is whole, by its container.

The name that a file came under does not count. `wav_fault`, `ogg_fault` and `mp3_fault` tell in one line
what libsndfile passes over in silence, a sound that is cut off or damaged; empty where nothing is wrong.
"""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
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
    (0, b"%PDF", "a PDF"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"FORM", "an AIFF sound"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska file"),
    (4, b"ftypavif", "an AVIF image"),
    (4, b"ftyphei", "a HEIC image"),
    (4, b"ftypM4A", "an M4A sound"),
    (4, b"ftyp", "an MP4 file"),
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


STREAMED = (0xFFFFFFFF, 0x7FFFFFFF)
"""Sizes that a program writes into a WAV header when it cannot go back: read to the end."""
AGAIN = "It is cut off or damaged: copy it again"
MOST_TAGS = 8
"""Tags at one end of an MP3 that are looked at."""
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def wav_fault(raw: BinaryIO, size: int) -> str:
    """A `data` chunk that is longer than the file: libsndfile shortens it in silence."""
    place = 12
    for _ in range(1000):
        raw.seek(place)
        head = raw.read(8)
        if len(head) < 8:
            return "has no samples: a WAV header without a data chunk"
        name, length = struct.unpack("<4sI", head)
        if name == b"data":
            there = size - place - 8
            if length > there and length not in STREAMED:
                return f"has {there:,} bytes of samples; its header says {length:,}. {AGAIN}"
            return ""
        place += 8 + length + length % 2
    return "has over 1,000 chunks before its samples; expected a plain WAV"


def ogg_fault(raw: BinaryIO) -> str:
    """An Ogg without all of its pages as they were written.

    libsndfile leaves a damaged page out, or lets the decoder guess what it held. What stands behind the
    last page of all streams is not looked at.
    """
    raw.seek(0)
    following: dict[int, int] = {}  # the next page's number, by stream
    has_ended = False
    while True:
        place = raw.tell()
        head = raw.read(27)
        if not head or (not following and not head.startswith(b"OggS")):
            break
        lengths = raw.read(head[26]) if len(head) == 27 else b""
        body = raw.read(sum(lengths))
        if len(head) < 27 or len(lengths) < head[26] or len(body) < sum(lengths):
            return f"ends inside a page of Ogg. {AGAIN}"
        flags, stream, number, said = struct.unpack("<5xB8xIII", head[:26])
        is_first, is_last = bool(flags & 2), bool(flags & 4)
        # Ogg's checksum is zlib's with the bits of each byte, and of the result, the other way round.
        summed = (head[:22] + bytes(4) + head[26:] + lengths + body).translate(_MIRRORED)
        turned = (zlib.crc32(summed, 0xFFFFFFFF) ^ 0xFFFFFFFF).to_bytes(4, "little")
        is_whole = said == int.from_bytes(turned.translate(_MIRRORED), "big")
        is_next = is_first or number == following.get(stream)
        if not head.startswith(b"OggS") or not is_whole or not is_next:
            return (
                f"has a damaged or missing page of Ogg at byte {place:,}. {AGAIN}, or take what is "
                "left: ffmpeg -i OLD.ogg NEW.wav"
            )
        if is_first and has_ended:
            return "holds several sounds, one behind the other; split it"
        following[stream] = number + 1
        if is_last:
            del following[stream]
            has_ended = True
    if not following:
        return ""
    return (
        "has no last page of Ogg: it was cut, or its writer did not end it. Copy it again, or take what "
        "there is: ffmpeg -i OLD.ogg NEW.wav"
    )


def mp3_fault(raw: BinaryIO, size: int, decoded_s: float, header_s: float) -> str:
    """An MP3 of which not all was decoded, as far as the file itself can tell.

    `raw` stands where the decoder ended. A length is exact where the first frame holds one (Xing, Info);
    else it is libsndfile's estimate from the first bytes, and frames behind it are never decoded.
    """
    end, begin = raw.tell(), 0
    for _ in range(MOST_TAGS):
        raw.seek(begin)
        head = raw.read(10)
        if head[:3] != b"ID3" or len(head) < 10:
            break
        begin += sum((byte & 127) << 7 * (3 - i) for i, byte in enumerate(head[6:10])) + 10
    raw.seek(begin)
    first = raw.read(64)
    # Encoders count a frame more or less.
    if (b"Xing" in first or b"Info" in first) and header_s - decoded_s > 0.25:
        return f"ends after {decoded_s:,.2f} s; its header says {header_s:,.2f} s. {AGAIN}"
    left = _before_tags(raw, end, size) - end
    # Half a second, by the mean rate, may be left behind the samples that were decoded.
    if left * decoded_s <= 0.5 * max(1, end - begin):
        return ""
    return (
        f"has {left:,} of {size:,} bytes behind what can be decoded: it does not say how long it is, or is "
        "damaged. Write it anew: ffmpeg -i OLD NEW.wav"
    )


def _before_tags(raw: BinaryIO, start: int, end: int) -> int:
    """Where the sound ends, before the tags and zeros at the end of an MP3; not before `start`."""
    for _ in range(MOST_TAGS):
        if end <= start:
            return start
        raw.seek(max(start, end - 128))
        tail = raw.read(end - max(start, end - 128))
        if tail[-128:-125] == b"TAG":
            end -= 128
        elif tail[-32:-24] == b"APETAGEX":
            has_head = bool(tail[-9] & 128)
            end -= int.from_bytes(tail[-20:-16], "little") + 32 * has_head
        else:
            break
    raw.seek(start)
    if start < end and raw.read(3) == b"ID3":
        return start
    while start < end:
        raw.seek(max(start, end - 4096))
        block = raw.read(end - max(start, end - 4096))
        end -= len(block) - len(block.rstrip(b"\0"))
        if block.rstrip(b"\0"):
            break
    return max(start, end)
