"""What every piece is, and the piece that is your own function."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from burnish.errors import ArgumentError


def require(is_met: bool, key: str, got: float, expected: str) -> None:
    if not is_met:
        raise ArgumentError(f"{key}: got {got}, expected {expected}")


class Piece(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of every piece: its kind names it in a recipe file."""


class Function(Piece, frozen=True, tag="function"):
    """Your own piece, by path: `my_file.py:name` or `package.module:name`.

    `burnish.policy.plugins` lists what a function of each slot takes and gives.
    """

    path: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)
