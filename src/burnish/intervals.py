"""What a mean with its 95 % interval may claim, and how it is written: `0.320 [0.237, 0.417]`.

Every place that shows an interval asks here; no statistics are computed.
"""

from __future__ import annotations

FEW = 10
"""Fewer prompts than this say little of all others, whatever their interval looks like."""
TOO_FEW = "too few to say"
ALL_EQUAL = "all equal: no interval"


def interval_doubt(low: float | None, high: float | None, size: int, *, few: int = FEW) -> str:
    """Why an interval should not be believed, in a few words; empty where nothing speaks against it.

    Values that are all equal give a bootstrap or t interval of no width, which claims certainty.
    """
    if size < few:
        return TOO_FEW
    return ALL_EQUAL if low is None or low == high else ""


def interval_text(
    value: float,
    low: float | None,
    high: float | None,
    size: int,
    *,
    signed: bool = False,
    few: int = FEW,
    digits: int = 3,
    unit: str = "",
) -> str:
    """A mean with its interval where it has one, and what speaks against it."""
    form = f"{'+' if signed else ''}.{digits}f"
    text = f"{value:{form}}{unit}"
    if low is not None and high is not None and low < high and size > 1:
        text += f" [{low:{form}}, {high:{form}}]"
    doubt = interval_doubt(low, high, size, few=few)
    return f"{text} ({doubt})" if doubt else text
