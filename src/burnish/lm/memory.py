"""How much memory a device has to spare."""

from __future__ import annotations

import os

import torch


def available_bytes(device: torch.device) -> int:
    """Free bytes on a GPU (torch's own unused reserve included) or in this machine's memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + reserve)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass  # not Linux: half of the physical memory is a cautious guess
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
