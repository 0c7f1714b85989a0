"""Stop strings for backends that get whole texts."""

from __future__ import annotations

from collections.abc import Sequence


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to its first stop string; some servers leave that string in."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
