"""The least time that a device could need: bytes over measured bandwidth, operations over rate.

    python lab/benchmarks/_speed_floor.py JOB OUT     # child of speed.py: the device and its rates

A decode step must read every weight once, the keys and values of a prompt once for all rows that
continue it and those of each row's own tokens, and must do two operations a weight and row, and
four a cached position, query dimension and row. A training step does six a weight and token.
Everything else (norms, sampling, the optimiser, attention while prompts are read) is left out: a
program is faster only where it shares the keys of different prompts, or where the device does more
than the copy and the product showed.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from _speed_records import Device, DeviceJob, Rates, read_job

if TYPE_CHECKING:
    import torch

    from burnish.lm.folder import LoadedModel


class Weights(NamedTuple):
    """The sizes of a model that its floor depends on."""

    body: int
    """Weights of the layers: all but embedding and head."""
    head: int
    kv_values: int
    """Numbers that one token leaves in the cache."""
    attention: int
    """Layers x query heads x head dimension."""
    itemsize: int

    @classmethod
    def of(cls, loaded: LoadedModel) -> Weights:
        from burnish.lm.architecture import read_architecture

        shape = read_architecture(loaded.config)
        head = shape.vocab_size * shape.hidden_size
        return cls(
            body=loaded.parameters - head * (1 if shape.tied_head else 2),
            head=head,
            kv_values=shape.kv_values_per_token,
            attention=shape.layers * shape.heads * shape.head_dim,
            itemsize=loaded.dtype.itemsize,
        )

    @property
    def bytes(self) -> int:
        """Read by every decode step; of an embedding that is not the head, next to nothing is."""
        return (self.body + self.head) * self.itemsize


class Group(NamedTuple):
    """Rows that continue the same prompt."""

    prompt: int
    """Tokens of the prompt."""
    rows: list[int]
    """New tokens of each row."""


def generation_floor(weights: Weights, rates: Rates, groups: Sequence[Group]) -> float:
    """Seconds at least for every prompt computed once and every row grown to its length.

    The first new token of a row comes from the prompt's own pass.
    """
    reading = 2 * weights.body * sum(g.prompt for g in groups) + 2 * weights.head * len(groups)
    seconds = max(weights.bytes / rates.bytes_per_s, reading / rates.operations_per_s)
    for step in range(1, max((new for group in groups for new in group.rows), default=0)):
        active = read = attended = 0
        for prompt, rows in groups:
            growing = sum(new > step for new in rows)
            active += growing
            read += growing * step + (prompt if growing else 0)
            attended += growing * (prompt + step)
        moved = weights.bytes + read * weights.kv_values * weights.itemsize
        done = 2 * (weights.body + weights.head) * active + 4 * weights.attention * attended
        seconds += max(moved / rates.bytes_per_s, done / rates.operations_per_s)
    return seconds


def update_floor(weights: Weights, rates: Rates, tokens: int, trained: int) -> float:
    """Seconds at least for one forward and backward pass; the head sees trained tokens only."""
    return 6 * (weights.body * tokens + weights.head * trained) / rates.operations_per_s


def main() -> None:
    """Write the device, its rates by dtype and the versions of what runs on it."""
    job, out = read_job(DeviceJob)
    import torch

    from burnish.lm.hardware import available_bytes

    found = torch.cuda.is_available()
    kind = job.device if job.device != "auto" else "cuda" if found else "cpu"
    device = torch.device(kind)
    dtypes = ("bfloat16",) if device.type == "cuda" else ("float32", "bfloat16")
    if job.quick:
        dtypes = ("float32",)
    about = Device(
        kind=device.type,
        name=torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        threads=torch.get_num_threads(),
        memory_bytes=available_bytes(device),
        python=platform.python_version(),
        versions=_versions("torch", "transformers", "trl", "triton"),
        rates={name: measure(device, getattr(torch, name), quick=job.quick) for name in dtypes},
    )
    out.write_bytes(msgspec.json.encode(about))


def measure(device: torch.device, dtype: torch.dtype, *, quick: bool = False) -> Rates:
    """The best of a few large copies and matrix products."""
    import torch

    on_gpu = device.type == "cuda"
    size, side = (2**31, 8192) if on_gpu else (2**22, 256) if quick else (2**28, 2048)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    with torch.inference_mode():
        copy_s = _best(lambda: target.copy_(source), device)
        product_s = _best(lambda: a @ b, device)
    return Rates(bytes_per_s=2 * size / copy_s, operations_per_s=2 * side**3 / product_s)


def _best(work: Callable[[], object], device: torch.device, times: int = 7) -> float:
    work()
    best = float("inf")
    for _ in range(times):
        began = clock(device)
        work()
        best = min(best, clock(device) - began)
    return best


def clock(device: torch.device) -> float:
    """Seconds, once everything that was asked of the device is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _processor() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return f"{next(iter(names), platform.processor() or platform.machine())}, {cores} cores"


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


if __name__ == "__main__":
    main()
