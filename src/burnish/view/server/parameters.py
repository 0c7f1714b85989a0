"""The parameters of a request, read with their types; a wrong one is one line.

asked = Parameters(request.query_params, known=("limit", "step"))
asked.whole("limit", 50, low=1, high=200)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from starlette.datastructures import QueryParams

from burnish.errors import UserError, did_you_mean
from burnish.view.index.columns import Range

PAGE = 50
MOST = 200
"""Rows of one page."""
TEXT = 1000
"""Characters of a parameter."""
WHOLE = 2**53


class Parameters:
    """What stands behind the question mark, closed to unknown names."""

    def __init__(self, query: QueryParams, known: Iterable[str]) -> None:
        self._query = query
        names = tuple(known)
        for name, value in query.multi_items():
            if name not in names:
                listed = ", ".join(names) or "none"
                hint = did_you_mean(name, names)
                raise UserError(f"unknown parameter '{name[:60]}'; expected {listed}.{hint}")
            if len(value) > TEXT:
                raise UserError(f"{name} has {len(value)} characters; expected at most {TEXT}.")

    def text(self, name: str, default: str = "") -> str:
        """A text; empty means absent."""
        return self._query.get(name) or default

    def needed(self, name: str) -> str:
        """A text that must be there."""
        value = self._query.get(name)
        if not value:
            raise UserError(f"the parameter '{name}' is missing.")
        return value

    def texts(self, name: str, allowed: Sequence[str] = ()) -> tuple[str, ...]:
        """All values of a parameter that may be repeated."""
        values = tuple(value for value in self._query.getlist(name) if value)
        for value in values:
            if allowed and value not in allowed:
                raise _unexpected(name, value, allowed)
        return values

    def one_of(self, name: str, allowed: Sequence[str], default: str) -> str:
        """One of a few words."""
        value = self.text(name, default)
        if value not in allowed and value != default:
            raise _unexpected(name, value, allowed)
        return value

    def whole(
        self, name: str, default: int | None = None, *, low: int = 0, high: int = WHOLE
    ) -> int | None:
        """A whole number within limits."""
        text = self._query.get(name)
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise UserError(f"{name} is '{text[:60]}'; expected a whole number.") from None
        if not low <= value <= high:
            raise UserError(f"{name} is {value}; expected {low} to {high}.")
        return value

    def count(self, name: str, default: int, *, low: int = 0, high: int = WHOLE) -> int:
        """A whole number that always has a value."""
        value = self.whole(name, default, low=low, high=high)
        return default if value is None else value

    def limit(self) -> int:
        """Rows of a page."""
        return self.count("limit", PAGE, low=1, high=MOST)

    def number(self, name: str) -> float | None:
        """A finite number."""
        text = self._query.get(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise UserError(f"{name} is '{text[:60]}'; expected a number.") from None
        if not math.isfinite(value):
            raise UserError(f"{name} is {text[:60]}; expected a finite number.")
        return value

    def range(self, name: str) -> Range:
        """`name_min` and `name_max`."""
        return Range(self.number(f"{name}_min"), self.number(f"{name}_max"))

    def flag(self, name: str) -> bool | None:
        """`1` or `0`; None where absent."""
        text = self.text(name)
        if text not in ("", "0", "1"):
            raise UserError(f"{name} is '{text[:60]}'; expected 1 or 0.")
        return text == "1" if text else None


def _unexpected(name: str, value: str, allowed: Sequence[str]) -> UserError:
    return UserError(
        f"{name} is '{value[:60]}'; expected one of {', '.join(allowed)}."
        f"{did_you_mean(value, allowed)}"
    )
