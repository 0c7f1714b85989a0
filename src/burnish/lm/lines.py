"""Append-only JSON-lines files that survive a kill at any moment.

Each record is one `write` of one line to a file opened for appending, so that after a kill at
most the last line is torn; the next writer cuts it off. Nothing is cut from a file that does not
hold our records: a broken line anywhere else, or an end that no torn record could leave, is
reported and the file stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec
from msgspec import Struct

from burnish.errors import StoreError, UserError
from burnish.texts import whole_texts

try:
    import fcntl
except ImportError:  # no advisory locks on this platform; two writers are then not detected
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T", bound=Struct)

TURN_S = 1.0
"""How long a writer of a shared file waits for its turn; a turn is one line."""


class LineFile(Generic[T]):
    """One JSON-lines file of records of one kind.

    One writer has it alone while it is open, or, with `shared`, any number of processes append to
    it in turn.
    """

    def __init__(self, path: Path, kind: type[T], *, shared: bool = False) -> None:
        self.path, self.kind, self.shared = path, kind, shared
        self.records: list[T] = []
        """What the last reading found: the whole file, or what others have added since."""
        self.starts: list[int] = []
        """Where each of the records begins in the file."""
        self._end = self._lines = 0
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be opened for writing ({error})") from error
        try:
            if self.shared:
                with self._turn():
                    self._read(cut=True)
            else:
                if fcntl is not None:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read(cut=True)
        except OSError as error:
            self._close()
            raise UserError(
                f"{self.path}: in use by another process; give each run its own file, or wait"
            ) from error
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

    @property
    def is_gone(self) -> bool:
        """Whether the path no longer leads to the file that is held open."""
        try:
            return not os.path.samestat(os.fstat(self._fd), self.path.stat())
        except OSError:
            return True

    def append(self, record: T) -> int:
        """Write one record as one line, in one system call; where it begins.

        Of a shared file, `records` are then those that others have added since the last reading.
        """
        try:
            line = msgspec.json.encode(record) + b"\n"
        except UnicodeEncodeError:
            line = msgspec.json.encode(whole_texts(msgspec.to_builtins(record))) + b"\n"
        if not self.shared:
            return self._write(line)
        with self._turn():
            self._read(cut=True)
            return self._write(line)

    def refresh(self, *, anew: bool = False) -> None:
        """Read the whole lines that are new, or all of them anew."""
        if anew:
            self._end = self._lines = 0
        self._read(cut=False)

    def at(self, start: int) -> T:
        """The record that begins at this place."""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(start)
            return _decode(self.path, file.readline(), msgspec.json.Decoder(self.kind), start)

    def _write(self, line: bytes) -> int:
        start = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written ({error})") from error
        if written != len(line):
            os.ftruncate(self._fd, start)
            raise StoreError(
                f"{self.path}: only {written} of {len(line)} bytes were written; is the disk full?"
            )
        self._end, self._lines = start + len(line), self._lines + 1
        return start

    @contextmanager
    def _turn(self) -> Iterator[None]:
        until = monotonic() + TURN_S
        while fcntl is not None:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if monotonic() > until:
                    raise StoreError(
                        f"{self.path}: in use by another process for over {TURN_S:g} s"
                    ) from error
                sleep(0.002)
        try:
            yield
        finally:
            if fcntl is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _read(self, *, cut: bool) -> None:
        """Read what is new; cut a torn last line once everything before it is known to be ours."""
        self.records, self.starts = [], []
        size = os.fstat(self._fd).st_size
        if size == self._end:
            return
        if size < self._end:  # somebody has shortened it
            self._end = self._lines = 0
        decoder, line = msgspec.json.Decoder(self.kind), b""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.records.append(_decode(self.path, line, decoder, self._end, self._lines + 1))
                self.starts.append(self._end)
                self._end, self._lines, line = self._end + len(line), self._lines + 1, b""
        if line and cut:
            opening = f'{{"{self.kind.__struct_encode_fields__[0]}":'.encode()
            is_ours = line[: len(opening)] == opening[: len(line)]
            try:
                decoder.decode(line)
            except msgspec.ValidationError:  # whole, and another kind of record
                is_ours = False
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            if not is_ours:
                raise StoreError(
                    f"{self.path}: it does not end as a file of {self.kind.__name__} records; left as it is"
                )
            os.ftruncate(self._fd, self._end)

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
    lines = enumerate(data.split(b"\n")[:-1], start=1)
    return [_decode(path, line, decoder, 0, number) for number, line in lines]


def _decode(
    path: Path, line: bytes, decoder: msgspec.json.Decoder[T], start: int, number: int = 0
) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = f"line {number}" if number else f"byte {start}"
        raise StoreError(
            f"{path}, {where}: {error}; expected one JSON record a line: the file is damaged or another"
        ) from error
