"""Your own preferences as tasks for training a pairwise judge.

write_jsonl(both_orders(rows), "pairs.jsonl")    # rows of {prompt, response_a, response_b, label}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import UserError
from burnish.seeds import digest
from burnish.tasks.base import is_held_out

TIE_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "1", "tie", "tied", "draw", "both"), True),
    **dict.fromkeys(("false", "no", "n", "0", ""), False),
}
"""What a label of ties may say."""


def says_tie(value: Any) -> bool | None:
    """Whether a row's label says "a tie"; an empty one says no, and None is a word not known."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    is_huge = isinstance(whole, int) and not -9 < whole < 9  # too many digits for a text
    text = "" if value is None else "?" if is_huge else str(whole).strip().lower()
    return TIE_WORDS.get(text)


def both_orders(
    rows: Iterable[Mapping[str, Any]], template: str | None = None, held_out: float = 0.1
) -> Iterator[dict[str, Any]]:
    """Two rows for the task kind `file` from each `{prompt, response_a, response_b, label}`.

    The prompt is that of the judge `genrm`, or `template` with its blanks. Both orders have the
    same `split`, "train" or "held_out": name that column in the file's `held_out` table. Ties
    (any other label than a and b) teach nothing and are left out.
    """
    from burnish.rewards.judges.prompting import check_template, fill, mark_for, wording

    wanted = wording("genrm") if template is None else template
    check_template(wanted, ("request", "first", "second"), "preference rows")
    for number, row in enumerate(rows):
        request, a, b = (_text(row, key, number) for key in ("prompt", "response_a", "response_b"))
        if row.get("label") not in ("a", "b"):
            continue
        key = digest(*(text.encode("utf-8", "surrogatepass") for text in (request, a, b)))
        side = "held_out" if is_held_out(key, held_out) else "train"
        for first, second, label in ((a, b, row["label"]), (b, a, "ab"[row["label"] == "a"])):
            values = {"request": request, "first": first, "second": second}
            values["mark"] = mark_for(*values.values())
            prompt = fill(wanted, values)
            yield {"prompt": prompt, "label": label, "pair": key, "split": side}


def write_jsonl(rows: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Write rows as a file for the task kind `file`; how many there were."""
    lines = [msgspec.json.encode(row) for row in rows]
    Path(path).write_bytes(b"".join(line + b"\n" for line in lines))
    return len(lines)


def _text(row: Mapping[str, Any], key: str, number: int) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(
            f"preference row {number}: '{key}' is {value!r:.40}; expected text. A row has prompt, "
            "response_a, response_b and label."
        )
    return value
