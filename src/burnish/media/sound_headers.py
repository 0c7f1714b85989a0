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
LEFT_S = 0.5
"""Seconds of an MP3, by its mean rate, that may be left behind the samples that were decoded."""
ANEW = "Write it anew: ffmpeg -i OLD NEW.wav"
MOST_TAGS = 8
"""Tags at one end of an MP3 that are looked at."""
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
    has_ended = False
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
                f"{where} has a damaged or missing page of Ogg at byte {place:,}. {AGAIN}, or "
                f"take what is left: ffmpeg -i OLD.ogg NEW.wav"
            )
        if is_first and has_ended:
            raise UserError(f"{where} holds several sounds, one behind the other; split it")
        following[stream] = number + 1
        if is_last:
            del following[stream]
            has_ended = True
    if following:
        raise UserError(
            f"{where} has no last page of Ogg: it was cut, or its writer did not end it. Copy it again, or "
            "take what there is: ffmpeg -i OLD.ogg NEW.wav"
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
    begin = _behind_id3(raw)
    raw.seek(begin)
    first = raw.read(64)
    if (b"Xing" in first or b"Info" in first) and header_s - decoded_s > MISSING_S:
        raise UserError(
            f"{where} ends after {decoded_s:,.2f} s; its header says {header_s:,.2f} s. {AGAIN}"
        )
    left = _before_tags(raw, end, size) - end
    if left * decoded_s > LEFT_S * max(1, end - begin):
        raise UserError(
            f"{where} has {left:,} of {size:,} bytes behind what can be decoded: it does not say how long "
            f"it is, or is damaged. {ANEW}"
        )


def _behind_id3(raw: BinaryIO) -> int:
    """Where the sound begins, behind the tags at the start of an MP3."""
    place = 0
    for _ in range(MOST_TAGS):
        raw.seek(place)
        head = raw.read(10)
        if head[:3] != b"ID3" or len(head) < 10:
            break
        place += sum((byte & 127) << 7 * (3 - i) for i, byte in enumerate(head[6:10])) + 10
    return place


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
        elif tail[-9:] == b"LYRICS200" and tail[-15:-9].isdigit():
            end -= int(tail[-15:-9]) + 15
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
