"""A run's samples or metrics as one file for other tools: JSON Lines, JSON, CSV or Parquet.

    export(Path("runs/first"), Path("samples.parquet"))
    export(Path("runs/first"), Path("curves.csv"), what="metrics")

Rows are streamed, so a run larger than memory can be written, and the file appears in one go: it is
whole, or what was there before is untouched. Token ids, masks and log-probs are lists in JSON and
Parquet; the task, the reward tree and the info are objects in JSON, and JSON text in the other two.

Images and sounds are named in the rows by their hash; their files are copied, bit for bit, into a
folder beside the table: `samples_media/` for `samples.parquet`. Tasks read such a table back with
`media_folder = "samples_media"`.

A spreadsheet runs a cell that begins like a formula, and a model can write one. In a CSV file such a
text gets one apostrophe in front, unless `raw` is asked for; numbers are never touched, and the other
formats hold every text as it is.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from burnish.errors import UserError, did_you_mean
from burnish.media.kinds import SUFFIXES
from burnish.records import Task
from burnish.store.blobs import held_messages
from burnish.store.durable import store_errors, whole_file, write_file
from burnish.store.frames import TOKENS, TREES, arrow_schema, decode_cells
from burnish.store.reader import RunReader
from burnish.store.run import RunStore
from burnish.store.sample import COLUMNS
from burnish.store.sample_name import sample_names

METRIC_COLUMNS = ("step", "name", "value")
BATCH_ROWS = 512


_FORMULA = re.compile(
    # Signs that begin a formula, their full-width and small forms too, behind what an import may
    # strip: blanks, quotes, marks without width. A tab or a return alone is stripped likewise.
    r"[\t\r]|[\s\x00-\x1f\"'`“”‘’\u200b-\u200f\u2060\ufeff]*[=+\-@＝＋－＠﹦﹢﹣﹫]"
)

Record = dict[str, Any]


def export(
    run: Path | RunReader,
    path: Path,
    what: Literal["samples", "metrics"] = "samples",
    *,
    raw: bool = False,
) -> int:
    """Write a table of the run to `path`, in the format its suffix names; how many rows it has.

    `raw` keeps texts in a CSV file that a spreadsheet would run as formulas.
    """
    writer = _write_raw_csv if raw and path.suffix == ".csv" else _WRITERS.get(path.suffix)
    if writer is None:
        known = ", ".join(_WRITERS)
        hint = did_you_mean(path.suffix, _WRITERS)
        raise UserError(f"{path}: unknown format '{path.suffix}'; expected one of {known}.{hint}")
    if what not in ("samples", "metrics"):
        hint = did_you_mean(what, ("samples", "metrics"))
        raise UserError(f"cannot export '{what}'; expected samples or metrics.{hint}")
    if isinstance(run, RunReader):
        return _export(run, path, what, writer)
    with RunStore.open(run, read_only=True) as store:
        return _export(store, path, what, writer)


def _export(run: RunReader, path: Path, what: str, writer: Writer) -> int:
    columns = COLUMNS if what == "samples" else METRIC_COLUMNS
    stored = run.table(what, columns)
    rows: Iterator[tuple[Any, ...]] = stored
    if what == "samples":
        place = itemgetter(*(columns.index(name) for name in ("step", "split", "idx")))
        columns = ("sample", *columns)
        # The names are made one step at a time, as the rows come.
        rows, same = itertools.tee(rows)
        rows = (
            (name, *row)
            for name, row in zip(sample_names(run, map(place, same)), rows, strict=True)
        )
    count = 0

    def records() -> Iterator[Record]:
        nonlocal count
        for row in rows:
            count += 1
            record = dict(zip(columns, row, strict=True))
            if what == "samples":
                _copy_media(run, record, media_folder(path))
            yield record

    # A writer that fails leaves rows unread, which must be let go of before the database closes.
    with contextlib.closing(stored), whole_file(path) as draft:
        writer(draft, columns, records())
    return count


def media_folder(path: Path) -> Path:
    """Where the images and sounds of an exported table are."""
    return path.with_name(f"{path.stem}_media")


def _copy_media(run: RunReader, record: Record, folder: Path) -> None:
    """Put the images and sounds of one sample beside the table, whole or not at all."""
    if not any('"sha256"' in record[name] for name in ("task", "info")):
        return
    task = msgspec.json.decode(record["task"], type=Task)
    for message in held_messages(task, msgspec.json.decode(record["info"])):
        for part in message.media:
            target = folder / f"{part.sha256}{SUFFIXES[part.media_type]}"
            if not target.is_file():
                with store_errors(f"make {folder}", folder):
                    folder.mkdir(parents=True, exist_ok=True)
                write_file(target, run.blobs.read(part))


def _write_jsonl(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    with path.open("wb") as file:
        for record in records:
            file.write(_object(record) + b"\n")


def _write_json(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    with path.open("wb") as file:
        file.write(b"[")
        for number, record in enumerate(records):
            file.write((b",\n" if number else b"\n") + _object(record))
        file.write(b"\n]\n")


def _write_csv(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    _write_raw_csv(path, columns, ({k: inert(v) for k, v in one.items()} for one in records))


def _write_raw_csv(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(record.values() for record in records)


def inert(cell: Any) -> Any:
    """A cell that no spreadsheet runs: a text like a formula behind an apostrophe, else itself."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _write_parquet(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    schema = arrow_schema(columns)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(itertools.islice(records, BATCH_ROWS)):
            writer.write_table(
                pa.Table.from_pylist([decode_cells(r) for r in batch], schema=schema)
            )


def _object(record: Record) -> bytes:
    """The record as one JSON object; columns that are JSON already go in as they are."""
    for column in record.keys() & {*TREES, *TOKENS}:
        record[column] = msgspec.Raw(record[column].encode())
    if "keep" in record:
        record["keep"] = bool(record["keep"])
    return msgspec.json.encode(record)


Writer = Callable[[Path, tuple[str, ...], Iterator[Record]], None]

_WRITERS: dict[str, Writer] = {
    ".jsonl": _write_jsonl,
    ".json": _write_json,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
