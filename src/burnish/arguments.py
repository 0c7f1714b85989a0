"""What functions demand of their arguments, in one vocabulary: `what: got ..., expected ...`."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Set, Sized
from pathlib import Path
from typing import Any

from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.numbers import plain

NUMBER = "a finite number"
LARGEST_SEED = 2**63 - 1
"""Of torch's generators."""
LARGEST_COUNT = 1_000_000
"""Of draws and of candidates; a larger one is a slip that would fill the memory or never end."""


def refused(what: str, got: object, expected: str) -> ArgumentError:
    """The error for an argument: `what: got ..., expected ...`."""
    return ArgumentError(f"{what}: got {shown(got)}, expected {expected}")


def shown(value: object, most: int = 60) -> str:
    """A value in one short line."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    try:
        text = repr(plain(value))
    # The boundary to other people's objects: a repr that fails must not hide what is wrong.
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def as_word(what: str, value: Any, known: Collection[str]) -> str:
    """One of the known words."""
    if isinstance(value, str) and value in known:
        return value
    hint = did_you_mean(value, known) if isinstance(value, str) else ""
    raise ArgumentError(f"{what}: got {shown(value)}, expected {', '.join(known)}.{hint}")


def as_text(what: str, value: Any) -> str:
    """A text; the empty one is a text."""
    if not isinstance(value, str):
        raise refused(what, value, "a text")
    return value


def as_texts(what: str, values: Any) -> list[str]:
    """A list of texts; a text counts as its letters, as `labels="0123"` does."""
    items = list(values) if isinstance(values, str) else as_list(what, values)
    return [as_text(what, item) for item in items]


def as_flag(what: str, value: Any) -> bool:
    """True or False; a word such as "no" is true to Python and is refused."""
    if not isinstance(value, bool):
        raise refused(what, value, "True or False")
    return value


def as_path(what: str, value: Any, of: str = "a path") -> Path:
    """A path from a text or a `Path`; `of` says what it leads to."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise refused(what, value, of)
    return Path(value)


def as_new_folder(what: str, value: Any) -> Path:
    """The path of a folder to write: one that is not there yet, or is empty."""
    target = as_path(what, value, "a folder to write")
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file; expected a new folder")
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} is there already and not empty; expected a new folder")
    return target


def as_table(what: str, value: Any, of: str = "a dict with text keys") -> dict[str, Any]:
    """A dict whose keys are texts."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refused(what, value, of)
    return dict(value)


def read_each(what: str, texts: Any, read: Callable[[str], Any]) -> Any:
    """What `read` makes of a text, or a list of that for a list of texts.

    None is a reply without a text and reads like the empty one.
    """
    if texts is None or isinstance(texts, str):
        return read(texts or "")
    if isinstance(texts, list | tuple):
        return [read("" if one is None else as_text(what, one)) for one in texts]
    raise refused(what, texts, "a text or a list of texts")


def as_number(
    what: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    whole: bool = False,
) -> float:
    """A finite number within its bounds: `low` and `high` included, `above` not.

    A number inside a 0-d tensor or array counts; a text does not.
    """
    number = plain_number(value)
    if (
        number is None
        or not math.isfinite(number)
        or not (above < number and low <= number <= high)
        or (whole and not number.is_integer())
    ):
        raise refused(what, value, _bounds(low, high, whole, above))
    return number


def as_whole(what: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> int:
    """A whole number within its bounds; exact where a float would not be, as seeds need it."""
    number = plain_number(value)
    is_whole = number is not None and math.isfinite(number) and number.is_integer()
    if not is_whole or not low <= (found := int(plain(value))) <= high:
        raise refused(what, value, _bounds(low, high, True))
    return found


def as_seed(value: Any) -> int:
    """A seed that every generator here takes."""
    return as_whole("seed", value, low=0, high=LARGEST_SEED)


def as_numbers(what: str, values: Any) -> list[float]:
    """A list of finite numbers, from any list or array."""
    found = []
    for place, value in enumerate(as_list(what, values)):
        number = plain_number(value)
        if number is None or not math.isfinite(number):
            raise ArgumentError(f"{what}: item {place} is {shown(value)}, expected {NUMBER}")
        found.append(number)
    return found


def as_list(what: str, values: Any, *, least: int = 0) -> list[Any]:
    """The items of a list, a tuple or an array of at least one axis; never those of a text."""
    items = plain(values)
    if isinstance(items, str | bytes | Mapping | Set) or not isinstance(items, Iterable):
        raise refused(what, values, "a list")
    found = list(items)
    if len(found) < least:
        raise refused(what, values, f"a list of at least {least}")
    return found


def same_length(what: str, values: Sized, length: int, of: str) -> None:
    """Refuse a list that has not one item for each of `length` others."""
    if len(values) != length:
        raise ArgumentError(
            f"{what}: got {len(values)}, expected one for each of the {length} {of}"
        )


def ordered(what: str, value: float, other: str, most: float) -> None:
    """Refuse a number above another one that bounds it."""
    if value > most:
        raise ArgumentError(f"{what}: got {value}, expected at most {other}, {most}")


def plain_number(value: Any) -> float | None:
    """A real number as a float, infinity and NaN included; None for anything else.

    An integer beyond every float is infinity.
    """
    value = plain(value)
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def _bounds(low: float, high: float, whole: bool, above: float = -math.inf) -> str:
    kind = "whole number" if whole else "number"
    if math.isfinite(low) and math.isfinite(high):
        return f"a {kind} from {low:g} to {high:g}"
    words = {"of at least": low, "above": above, "of at most": high}
    parts = [f"{word} {bound:g}" for word, bound in words.items() if math.isfinite(bound)]
    return f"a {kind} {' and '.join(parts)}" if parts else f"a finite {kind}"
