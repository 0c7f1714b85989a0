"""What libsndfile passes over in silence: sounds that are cut off or damaged, told by their containers.

check_wav(raw, where, size)         # before the file is opened
check_ogg(raw, where)
check_mp3(raw, where, size, ...)    # after its last sample

Each raises one line, or nothing.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO

from burnish.errors import UserError

STREAMED = (0xFFFFFFFF, 0x7FFFFFFF)
"""Sizes that a program writes into a WAV header when it cannot go back: read to the end."""
AGAIN = "It is cut off or damaged: copy it again"
MISSING_S = 0.25
"""Seconds by which the count of an MP3 header may be wrong; encoders count a frame more or less."""
LEFT_BYTES = 8192
"""Bytes of an MP3 that may be left behind the samples that were decoded."""
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def check_wav(raw: BinaryIO, where: str, size: int) -> None:
    """Refuse a `data` chunk that is longer than the file: libsndfile shortens it in silence."""
    place = 12
    for _ in range(1000):
        raw.seek(place)
        head = raw.read(8)
        if len(head) < 8:
            raise UserError(f"{where} has no samples: a WAV header without a data chunk")
        name, length = struct.unpack("<4sI", head)
        if name == b"data":
            there = size - place - 8
            if length > there and length not in STREAMED:
                raise UserError(
                    f"{where} has {there:,} bytes of samples; its header says {length:,}. {AGAIN}"
                )
            return
        place += 8 + length + length % 2
    raise UserError(f"{where} has over 1,000 chunks before its samples; expected a plain WAV")


def check_ogg(raw: BinaryIO, where: str) -> None:
    """Refuse an Ogg without all of its pages as they were written.

    libsndfile leaves a damaged page out, or lets the decoder guess what it held. What stands behind the
    last page of all streams is not looked at.
    """
    raw.seek(0)
    following: dict[int, int] = {}  # the next page's number, by stream
    while True:
        place = raw.tell()
        head = raw.read(27)
        if head and not head.startswith(b"OggS") and not following:
            return
        if not head:
            break
        lengths = raw.read(head[26]) if len(head) == 27 else b""
        body = raw.read(sum(lengths))
        if len(head) < 27 or len(lengths) < head[26] or len(body) < sum(lengths):
            raise UserError(f"{where} ends inside a page of Ogg. {AGAIN}")
        flags, stream, number, said = struct.unpack("<5xB8xIII", head[:26])
        is_first, is_last = bool(flags & 2), bool(flags & 4)
        if (
            not head.startswith(b"OggS")
            or said != _ogg_sum(head[:22] + bytes(4) + head[26:] + lengths + body)
            or (not is_first and number != following.get(stream))
        ):
            raise UserError(
                f"{where} has a damaged or missing page of Ogg at byte {place:,}. {AGAIN}"
            )
        following[stream] = number + 1
        if is_last:
            del following[stream]
    if following:
        raise UserError(
            f"{where} has no last page of Ogg: it was cut, or its writer did not end it. Copy it again, or "
            "write it anew: ffmpeg -i OLD.ogg NEW.ogg"
        )


def _ogg_sum(data: bytes) -> int:
    """Ogg's checksum: zlib's with the bits of each byte, and of the result, the other way round."""
    turned = zlib.crc32(data.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(turned.to_bytes(4, "little").translate(_MIRRORED), "big")


def check_mp3(raw: BinaryIO, where: str, size: int, decoded_s: float, header_s: float) -> None:
    """Refuse an MP3 of which not all was decoded, as far as the file itself can tell.

    `raw` stands where the decoder ended. A length is exact where the first frame holds one (Xing, Info);
    else it is libsndfile's estimate from the first bytes, and frames behind it are never decoded.
    """
    end = raw.tell()
    next_bytes = raw.read(2)
    raw.seek(0)
    head = raw.read(10)
    if head[:3] == b"ID3" and len(head) == 10:  # seven bits a byte
        raw.seek(sum((byte & 127) << 7 * (3 - i) for i, byte in enumerate(head[6:10])) + 10)
    else:
        raw.seek(0)
    first = raw.read(64)
    if (b"Xing" in first or b"Info" in first) and header_s - decoded_s > MISSING_S:
        raise UserError(
            f"{where} ends after {decoded_s:,.2f} s; its header says {header_s:,.2f} s. {AGAIN}"
        )
    is_frame = len(next_bytes) == 2 and next_bytes[0] == 0xFF and next_bytes[1] >= 0xE0
    if is_frame and size - end > max(LEFT_BYTES, size // 20):
        raise UserError(
            f"{where} has {size - end:,} of {size:,} bytes behind what can be decoded: it does not say "
            "how long it is. Write it again, for example with: ffmpeg -i OLD.mp3 NEW.wav"
        )
