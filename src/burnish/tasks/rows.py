"""Rows of a JSONL, JSON, CSV, TSV or Parquet file, held whole, each with the place it came from.

Also your own preferences as rows for training a pairwise judge: `write_jsonl(both_orders(rows), path)`.
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
from burnish.tools.search.sources import (
    KINDS,
    BadRow as BadRow,
    SourceRow,
    decode_json,
    kind_word,
    read_rows,
)

Format = Literal["auto", "jsonl", "json", "csv", "tsv", "parquet"]

SUFFIXES: dict[str, Format] = {**KINDS, ".json": "json"}
MOST_BYTES = 8 << 30
"""Of a Parquet file, unpacked."""
TIE_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "1", "tie", "tied", "draw", "both"), True),
    **dict.fromkeys(("false", "no", "n", "0", ""), False),
}
"""What a label of ties may say."""


class Table(NamedTuple):
    """A file as read: good rows, bad rows, and the bytes that its fingerprint is made of."""

    path: Path
    content: bytes
    rows: list[SourceRow]
    bad: list[BadRow]


def read_table(path: Path, format_: Format = "auto") -> Table:
    """Read a file of rows; a row that cannot be parsed is collected, not raised."""
    suffix = path.suffix.lower()
    if format_ == "auto" and (suffix not in SUFFIXES or path.is_dir()):
        hint = f"{', '.join(SUFFIXES)}.{did_you_mean(suffix, SUFFIXES)} Name a file, or set format"
        raise UserError(f"{path}: cannot tell the format from '{path.suffix}'; expected {hint}.")
    kind = SUFFIXES[suffix] if format_ == "auto" else format_
    try:
        content: bytes = recall(str(path)) if is_kept(str(path)) else path.read_bytes()
    except OSError as error:
        near = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path}: {error.strerror}.{did_you_mean(path.name, near)}") from None
    rows: list[SourceRow] = []
    bad: list[BadRow] = []
    if kind == "json":
        for number, one in enumerate(_decoded(path, content), 1):
            if isinstance(one, dict):
                rows.append(SourceRow(number, one, 1.0))
            else:
                why = f"got {kind_word(one)}, expected an object with named columns"
                bad.append(BadRow(number, why))
    else:
        for row in read_rows(path, kind, content, most_bytes=MOST_BYTES):
            if isinstance(row, BadRow):
                bad.append(row)
            else:
                rows.append(row)
    if not rows and not bad:
        raise UserError(f"{path}: no rows; expected at least one.")
    return Table(path, content, rows, bad)


def _decoded(path: Path, content: bytes) -> list[Any]:
    try:
        value = decode_json(content.decode("utf-8-sig"))
        if isinstance(value, list):
            return value
        problem = f"got {kind_word(value)}"
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        problem = f"not JSON ({error})"
    raise UserError(f"{path}: {problem}; expected an array (for lines: format = 'jsonl').")


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
    return TIE_WORDS.get("" if value is None else str(whole).strip().lower())


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
