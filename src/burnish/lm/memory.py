"""How much memory a device has to spare, and what sampling may take of it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from burnish.errors import ModelError


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
        free, _ = torch.cuda.mem_get_info(device)
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + reserve)
    return min(_machine_bytes(), _container_bytes())


def _machine_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        # Not Linux: half of the physical memory is a cautious guess.
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def _container_bytes() -> int:
    """What a container's limit leaves; without a limit, more than any machine has."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        return 1 << 62 if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return 1 << 62
