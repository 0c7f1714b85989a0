"""Options that several generators share, checked with one line for a mistake."""

from __future__ import annotations

from burnish.errors import UserError


def check_shares(game: str, **shares: float) -> None:
    """Refuse a share that is not a number between 0 and 1."""
    for name, value in shares.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= 1:
            raise UserError(f"task option '{name}' of {game} is {value!r}; expected 0 to 1.")
