"""ZIP archives from outside: bounded before anything is built, and damage is one kind of error.

with open_archive(data, most_files=2000) as archive:
    for member in archive.infolist(): unpacked(archive, member, most=1 << 20)
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from burnish.errors import BoundaryError

_ENTRY = 46
"""Bytes of the smallest entry of a directory."""
_LONGEST_ENTRY = 1024
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError, ValueError)
_UNREAD = (NotImplementedError, RuntimeError)
"""Of zipfile, for other packings and for encryption."""


class ArchiveError(BoundaryError):
    """An archive that is damaged, packed in a way not read here, or too large."""


@contextmanager
def open_archive(data: bytes, *, most_files: int) -> Iterator[zipfile.ZipFile]:
    # zipfile makes an object of each entry when it opens, as far as the directory's size says.
    end = data.rfind(b"PK\x05\x06")
    size = int.from_bytes(data[end + 12 : end + 16], "little") if end >= 0 else 0
    if size > most_files * (_ENTRY + _LONGEST_ENTRY):
        raise ArchiveError(f"its directory has {size:,} bytes; it is not opened")
    with _as_one_error(""), zipfile.ZipFile(io.BytesIO(data)) as archive:
        if len(archive.infolist()) > most_files:
            raise ArchiveError(f"more than {most_files:,} parts")
        yield archive


def unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> bytes:
    """The contents of a member, no more than `most` bytes of them, whatever it says of its size."""
    with _as_one_error(f"{member.filename}: "), archive.open(member) as stream:
        return stream.read(most)


@contextmanager
def _as_one_error(name: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ArchiveError(f"{name}damaged, or no archive ({error})") from error
    except _UNREAD as error:
        raise ArchiveError(f"{name}packed or encrypted in a way not read here") from error
