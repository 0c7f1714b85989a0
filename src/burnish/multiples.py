"""Numbers of steps that grow with the run: `"2.5x"` is two and a half times the run's own steps."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Multiple = Annotated[str, Meta(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?x$")]


def in_steps(setting: int | Multiple, steps: int) -> int:
    """The number of steps that a setting means in a run of `steps`."""
    if isinstance(setting, int):
        return setting
    return round(float(setting.removesuffix("x")) * steps)
