"""What typing a command gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Typed(NamedTuple):
    """What a command line gave."""

    code: int
    out: str
    err: str


Type = Callable[..., Typed]
