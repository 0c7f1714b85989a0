"""The hardware: where kernels can run, how many threads to use, and how much memory is free."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from burnish.errors import BoundaryError, ModelError, UserError, is_out_of_memory

if TYPE_CHECKING:
    # Imported where it is used: commands that never compute look at errors here.
    import torch
    from torch import Tensor


_HAS_TRITON = importlib.util.find_spec("triton") is not None


def can_run_kernels(tensor: Tensor) -> bool:
    """On a GPU, for everything but float64, where Triton is installed."""
    import torch

    return tensor.is_cuda and tensor.dtype != torch.float64 and _HAS_TRITON


GPU_SHARE = "BURNISH_GPU_SHARE"
SMALL_MODEL = 500_000
"""From this many weights on every core is used: 1.2 to 2 times as fast on two cores from 0.8 M on,
even with few rows."""
SMALL_STEP = 6_000_000
"""A smaller model uses every core where weights x rows decoded at once reach this.

`lab/benchmarks/threads.py` on an idle two-core machine, 115 k weights: two threads over one gained 1.02
with 16 rows, 1.19 with 64 and 1.11 with 256. Where other work holds the second core, two threads are
slower at every size, by half and more; `model.threads=1` is for that.
"""


def choose_threads(parameters: int, cores: int, rows: int = 1) -> int:
    """Threads for torch: 1 for small models with few rows at once, else every core up to 16."""
    if parameters < SMALL_MODEL and parameters * rows < SMALL_STEP:
        return 1
    return max(1, min(cores, 16))


def usable_cores() -> int:
    """Cores that this process may use, at most `OMP_NUM_THREADS` where that is set."""
    is_linux = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) > 0 else cores


def prefill_tokens(device: torch.device) -> int:
    """Most prompt tokens computed at once, padding included."""
    return 262_144 if device.type == "cuda" else 32_768


def too_long(tokens: int, needed: int, free: int) -> ModelError:
    """For a sequence that the free bytes do not hold even alone."""
    return ModelError(
        f"one sequence of {tokens} tokens needs {needed >> 20} MiB to sample; "
        f"{max(free, 0) >> 20} MiB are free for it. Lower max_tokens or shorten the prompt."
    )


def available_bytes(device: torch.device) -> int:
    """Free bytes on a GPU (torch's own unused reserve included) or for this process."""
    if device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        reserved, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        share = gpu_share()
        if share < 1:
            torch.cuda.set_per_process_memory_fraction(share, device.index)
        return within_share(free + reserved - used, total, used, share)
    return free_memory()


def within_share(free: int, total: int, used: int, share: float) -> int:
    """Free bytes of a GPU, and no more than this program's share leaves beside what it uses."""
    return max(0, min(free, int(share * total) - used))


def gpu_share() -> float:
    """`BURNISH_GPU_SHARE`, the part of a GPU's memory that this program may take; 1 without it."""
    given = os.environ.get(GPU_SHARE, "")
    try:
        share = float(given or 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UserError(
            f"{GPU_SHARE} is {given[:40]!r}; expected a number above 0 and up to 1, such as 0.25"
        )
    return share


def free_memory() -> int:
    """Free bytes of this machine, or of what a container leaves of it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        # Not Linux: half of the physical memory is a cautious guess.
        free = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return min(free, max(0, limit - int((group / "memory.current").read_text())))
    except (OSError, ValueError):  # without a limit
        return free


def has_fast_bfloat16(*, on_cpu: bool) -> bool:
    """Whether the hardware multiplies bfloat16 faster than float32: GPUs since 2020, CPUs with AMX."""
    import torch

    if on_cpu:
        return bool(torch.cpu._is_amx_tile_supported())
    return bool(torch.cuda.is_bf16_supported())


_UNSURE = re.compile(r"CU(BLAS|DNN)_STATUS_(EXECUTION_FAILED|NOT_INITIALIZED|INTERNAL_ERROR)")
"""What a full device looks like to a library that got no workspace; faults look the same."""
SPARE = 512 << 20
"""Bytes to be had below which an unsure error is put down to memory."""
_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+ [KMG]?i?B)")


class DeviceFull(BoundaryError):
    """The device has no memory left for the work."""


class Held(NamedTuple):
    """Memory of a device, in bytes."""

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
    """True if the error is a CUDA out-of-memory error."""
    return _cause(error) is not None


def device_full(error: BaseException, what: str, next_step: str) -> DeviceFull | None:
    """The one-line error for a full device that stopped `what`; None for every other error."""
    cause = _cause(error)
    if cause is None:
        return None
    asked = _ASKED.search(str(cause))
    more = f" for {asked[1]} more" if asked else ""
    return DeviceFull(f"{what} ran out of GPU memory{more}{held_text()}. {next_step}")


def held_text() -> str:
    """` (who holds the GPU's memory)`; empty where that is not known."""
    return "" if (held := measure()) is None else f" ({held})"


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
