"""Append-only JSON-lines files that survive a kill at any moment.

Each record is one `write` of one line to a file opened for appending, so that after a kill at
most the last line is torn; the next opening cuts it off. Nothing is cut from a file that does not
hold our records: a broken line anywhere else, or an end that no torn record could leave, is
reported and the file stays as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Struct

from burnish.errors import StoreError, UserError

try:
    import fcntl
except ImportError:  # no advisory locks on this platform; two writers are then not detected
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T", bound=Struct)


class Place(NamedTuple):
    """A place between two lines of a file."""

    offset: int = 0
    line: int = 0


START = Place()


class LineFile(Generic[T]):
    """One JSON-lines file of records of one kind, held open by one writer.

    `known` is the end of what an earlier opening has read; only what follows is read again.
    """

    def __init__(self, path: Path, kind: type[T], known: Place = START) -> None:
        self.path = path
        self.kind = kind
        self.end = known
        """Where the whole lines ended when the file was opened."""
        self.records: list[T] = []
        """What stood between `known` and `end`."""
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be opened for writing ({error})") from error
        try:
            self._lock()
            self._read()
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

    def is_same(self, path: Path) -> bool:
        """Whether the path still leads to the file that is held open."""
        return os.path.samestat(os.fstat(self._fd), path.stat())

    def append(self, record: T) -> None:
        """Write one record as one line, in one system call."""
        line = msgspec.json.encode(record) + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written ({error})") from error
        if written != len(line):
            os.ftruncate(self._fd, size)
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

    def _read(self) -> None:
        """Read what is new; cut a torn last line once everything before it is known to be ours."""
        size = os.fstat(self._fd).st_size
        start = self.end if self.end.offset <= size else START
        try:
            with open(self._fd, "rb", closefd=False) as file:
                file.seek(start.offset)
                data = file.read()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error})") from error
        tail = data[data.rfind(b"\n") + 1 :]
        self.records = _decoded(self.path, data, self.kind, start.line)
        if tail and not _is_torn(tail, self.kind):
            raise StoreError(
                f"{self.path}: it does not end as a file of {self.kind.__name__} records does; "
                "nothing was changed. Is it something else? Choose another file"
            )
        self.end = Place(start.offset + len(data) - len(tail), start.line + len(self.records))
        if tail:
            os.ftruncate(self._fd, self.end.offset)

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
    return _decoded(path, data, kind, 0)


def _decoded(path: Path, data: bytes, kind: type[T], lines_before: int) -> list[T]:
    decoder = msgspec.json.Decoder(kind)
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=lines_before + 1):
        try:
            records.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(
                f"{path}, line {number}: {error}; expected one JSON record a line. "
                "Only a last line may be torn: the file is damaged or is something else"
            ) from error
    return records


def _is_torn(tail: bytes, kind: type[Struct]) -> bool:
    """True for the beginning of a record as `append` writes it, False for anything foreign."""
    opening = f'{{"{kind.__struct_encode_fields__[0]}":'.encode()
    if tail[: len(opening)] != opening[: len(tail)]:
        return False
    try:
        whole: Any = msgspec.json.decode(tail)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True
    try:
        msgspec.convert(whole, kind, str_keys=True)
    except msgspec.ValidationError:
        return False
    return True
