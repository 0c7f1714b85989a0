"""A GPU without free memory, told in one line however torch and CUDA name it.

Torch's allocator, the CUDA runtime and cuBLAS each have an error of their own for the same
condition. Nothing here imports torch: an error of torch's means that it is loaded already.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from burnish.errors import BoundaryError, is_out_of_memory

_UNSURE = re.compile(r"CU(BLAS|DNN)_STATUS_(EXECUTION_FAILED|NOT_INITIALIZED|INTERNAL_ERROR)")
"""What a full device looks like to a library that got no workspace; faults look the same."""
SPARE = 512 << 20
"""Bytes to be had below which an unsure error is put down to memory."""
_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+ [KMG]?i?B)")


class DeviceFull(BoundaryError):
    """The device has no memory left for the work."""


class Held(NamedTuple):
    """Who holds a device's memory, in bytes."""

    device: str
    total: int
    free: int
    ours: int
    idle: int = 0
    """Of ours, what torch keeps for tensors to come."""

    def __str__(self) -> str:
        free, total, ours = (f"{count / 2**30:.2f}" for count in (self.free, self.total, self.ours))
        return (
            f"{self.device} has {total} GiB, {free} GiB free, {ours} GiB held by this process; "
            "other programs may hold the rest"
        )


def is_device_full(error: BaseException) -> bool:
    """Whether an error of torch's means that a GPU has no memory left."""
    return _cause(error) is not None


def device_full(error: BaseException, what: str, next_step: str) -> DeviceFull | None:
    """The one line for a full device that stopped `what`; None for every other error."""
    cause = _cause(error)
    if cause is None:
        return None
    asked = _ASKED.search(str(cause))
    more = f" for {asked[1]} more" if asked else ""
    return DeviceFull(f"{what} ran out of GPU memory{more}{held_text()}. {next_step}")


def held_text() -> str:
    """` (who holds the GPU's memory)`; empty where that is not known."""
    held = measure()
    return "" if held is None else f" ({held})"


def measure() -> Held | None:
    """The current GPU's memory; None without one, or where the driver does not say."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    try:
        free, total = torch.cuda.mem_get_info()
        ours = torch.cuda.memory_reserved()
        idle = ours - torch.cuda.memory_allocated()
        return Held(f"cuda:{torch.cuda.current_device()}", total, free, ours, idle)
    except RuntimeError:
        # A driver that cannot even be asked; the line then says only what is known.
        return None


def _cause(error: BaseException) -> BaseException | None:
    """The error that tells of a full device: this one, or one of a group's."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_cause, error.exceptions)), None)
    if is_out_of_memory(error):
        return error
    if not isinstance(error, RuntimeError) or not _UNSURE.search(str(error)):
        return None
    held = measure()
    # Torch's cache takes what the driver calls free, on a healthy device too.
    return error if held is not None and held.free + held.idle < SPARE else None
