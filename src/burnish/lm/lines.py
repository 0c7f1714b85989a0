"""Append-only JSON-lines files that survive a kill at any moment.

Each record is one `write` of one line to a file opened for appending, so that after a kill at
most the last line is torn; the next opening cuts it off. A broken line anywhere else is damage
and is reported with its number.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from burnish.errors import StoreError, UserError

try:
    import fcntl
except ImportError:  # no advisory locks on this platform; two writers are then not detected
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")


class LineFile:
    """One JSON-lines file held open by one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be opened for writing ({error})") from error
        try:
            self._lock()
            self._cut_torn_line()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def append(self, record: Any) -> None:
        """Write one record as one line, in one system call."""
        line = msgspec.json.encode(record) + b"\n"
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written ({error})") from error
        if written != len(line):
            self._cut_torn_line()
            raise StoreError(
                f"{self.path}: only {written} of {len(line)} bytes of a line were written; "
                "is the disk full?"
            )

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"{self.path}: in use by another process; give each run its own file "
                "or wait until that one ends"
            ) from error

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)

    def _close(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            os.fsync(fd)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written to the end ({error})") from error
        finally:
            os.close(fd)


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """Every complete record of a JSON-lines file; a torn last line is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error})") from error
    decoder = msgspec.json.Decoder(kind)
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            records.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"{path}, line {number}: {error}; expected one JSON record a line. "
                "Only a last line may be torn: the file is damaged or is something else"
            ) from error
    return records
