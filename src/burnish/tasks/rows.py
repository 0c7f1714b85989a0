"""Rows of a JSONL, JSON, CSV, TSV or Parquet file, held whole, each with the place it came from.

    table = read_table(Path("train.jsonl"))
    table.rows, table.bad           # those that could be read, and those that could not, with the reason

Also your own preferences as rows for training a pairwise judge:

    write_jsonl(both_orders(rows), "pairs.jsonl")    # rows of {prompt, response_a, response_b, label}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from burnish.boundary import Fraction, Name, public
from burnish.errors import UserError, did_you_mean
from burnish.memory import is_kept, recall
from burnish.seeds import digest
from burnish.tasks.base import is_held_out
from burnish.tools.search.sources import BadRow as BadRow
from burnish.tools.search.sources import decode_json, kind_word, read_rows

Format = Literal["auto", "jsonl", "json", "csv", "tsv", "parquet"]

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
MOST_BYTES = 8 << 30
"""Of a Parquet file, unpacked."""
TIE_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "1", "tie", "tied", "draw", "both"), True),
    **dict.fromkeys(("false", "no", "n", "0", ""), False),
}
"""What a label of ties may say."""


class Row(NamedTuple):
    """One readable row."""

    number: int
    """Line in a text file, position from 1 elsewhere."""
    values: dict[str, Any]


class Table(NamedTuple):
    """A file as read: good rows, bad rows, and the bytes that its fingerprint is made of."""

    path: Path
    content: bytes
    rows: list[Row]
    bad: list[BadRow]


def read_table(path: Path, format_: Format = "auto") -> Table:
    """Read a file of rows; a row that cannot be parsed is collected, not raised."""
    kind = _format_of(path) if format_ == "auto" else format_
    content = _content(path)
    if not content.strip():
        raise UserError(f"{path}: the file is empty; expected at least one row of {kind}.")
    table = Table(path, content, [], [])
    found = _array(path, content) if kind == "json" else None
    for row in found or read_rows(path, kind, content, most_bytes=MOST_BYTES):
        if isinstance(row, BadRow):
            table.bad.append(row)
        else:
            table.rows.append(Row(row.number, row.values))
    if not table.rows and not table.bad:
        raise UserError(f"{path}: no rows; expected at least one.")
    return table


def _format_of(path: Path) -> Format:
    suffix = path.suffix.lower()
    if path.is_dir():
        inside = sorted(one.name for one in path.iterdir() if one.suffix.lower() in SUFFIXES)
        such = f", such as {path / inside[0]}" if inside else ""
        raise UserError(
            f"{path}: a folder; expected one file of rows ({', '.join(SUFFIXES)}){such}."
        )
    if suffix not in SUFFIXES:
        raise UserError(
            f"{path}: cannot tell the format from '{path.suffix}'; expected one of "
            f"{', '.join(SUFFIXES)}.{did_you_mean(suffix, SUFFIXES)} Or set format."
        )
    return SUFFIXES[suffix]


def _content(path: Path) -> bytes:
    if is_kept(str(path)):
        content: bytes = recall(str(path))
        return content
    try:
        return path.read_bytes()
    except OSError as error:
        near = path.parent.iterdir() if path.parent.is_dir() else ()
        missing = did_you_mean(path.name, [one.name for one in near])
        why = f"no such file.{missing} Paths are relative to the file that names them."
        is_missing = isinstance(error, FileNotFoundError)
        other = f"cannot be read ({error.strerror}); expected a file."
        raise UserError(f"{path}: {why if is_missing else other}") from None


def _array(path: Path, content: bytes) -> Iterator[Row | BadRow]:
    try:
        value = decode_json(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UserError(
            f"{path}: not JSON ({error}); expected one array of objects. "
            "One object a line is format = 'jsonl'."
        ) from None
    if not isinstance(value, list):
        raise UserError(f"{path}: got {kind_word(value)}, expected one array of objects.")
    for number, one in enumerate(value, start=1):
        why = f"got {kind_word(one)}, expected an object with named columns"
        yield Row(number, one) if isinstance(one, dict) else BadRow(number, why)


# --- preferences


class Preference(msgspec.Struct, frozen=True):
    """A row of preferences; a label that is neither a nor b is a tie, or none."""

    prompt: Name
    response_a: Name
    response_b: Name
    label: Any = None


def says_tie(value: Any) -> bool | None:
    """Whether a row's label says "a tie"; an empty one says no, and None is a word not known."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    is_huge = isinstance(whole, int) and not -9 < whole < 9  # too many digits for a text
    text = "" if value is None else "?" if is_huge else str(whole).strip().lower()
    return TIE_WORDS.get(text)


@public
def both_orders(
    rows: Iterable[Preference], template: str | None = None, held_out: Fraction = 0.1
) -> Iterator[dict[str, Any]]:
    """Two rows for the task kind `file` from each `{prompt, response_a, response_b, label}`.

    The prompt is that of the judge `genrm`, or `template` with its blanks. Both orders have the
    same `split`, "train" or "held_out": name that column in the file's `held_out` table. Ties
    (any other label than a and b) teach nothing and are left out.
    """
    from burnish.rewards.judges.prompting import check_template, fill, mark_for, wording

    wanted = wording("genrm") if template is None else template
    check_template(wanted, ("request", "first", "second"), "preference rows")
    for row in rows:
        if row.label not in ("a", "b"):
            continue
        request, a, b = row.prompt, row.response_a, row.response_b
        key = digest(*(text.encode("utf-8", "surrogatepass") for text in (request, a, b)))
        side = "held_out" if is_held_out(key, held_out) else "train"
        for first, second, label in ((a, b, row.label), (b, a, "ab"[row.label == "a"])):
            values = {"request": request, "first": first, "second": second}
            values["mark"] = mark_for(*values.values())
            prompt = fill(wanted, values)
            yield {"prompt": prompt, "label": label, "pair": key, "split": side}


def write_jsonl(rows: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Write rows as a file for the task kind `file`; how many there were."""
    lines = [msgspec.json.encode(row) for row in rows]
    Path(path).write_bytes(b"".join(line + b"\n" for line in lines))
    return len(lines)
