"""The start model's rewards, as a run measured them before its first step and keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from burnish.errors import StoreError
from burnish.store.durable import write_file

CALIBRATION = "calibration.json"
"""The file's name in the run's folder."""


class StartRewards(Struct, frozen=True):
    """Mean and deviation of each reward on the start model's own answers."""

    answers: int
    names: tuple[str, ...]
    mean: list[float]
    deviation: list[float]
    counts: list[int]

    def columns(self, names: Sequence[str]) -> tuple[list[float], list[float], list[int]]:
        """Mean, deviation and count of these rewards, in their order."""
        places = [self.names.index(name) for name in names]
        return (
            [self.mean[place] for place in places],
            [self.deviation[place] for place in places],
            [self.counts[place] for place in places],
        )


def read_start_rewards(folder: Path) -> StartRewards | None:
    """What the run in this folder measured; None where it measured nothing."""
    path = folder / CALIBRATION
    if not path.is_file():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=StartRewards)
        sizes = {len(found.names), len(found.mean), len(found.deviation), len(found.counts)}
        if (
            len(sizes) > 1
            or not all(sd > 0 for sd in found.deviation)
            or min(found.counts, default=0) < 0
        ):
            raise msgspec.ValidationError(
                "expected a mean, a deviation above 0 and a count a reward"
            )
        return found
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"{path}: damaged: {error}.") from error


def write_start_rewards(folder: Path, measured: StartRewards) -> None:
    """Keep it: whole, or not at all."""
    write_file(folder / CALIBRATION, msgspec.json.encode(measured))
