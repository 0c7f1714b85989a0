"""Checkpoints: a Hugging Face folder that loads as it lies, with the trainer's state inside.

    checkpoints/step-000010/
        config.json  model.safetensors  tokenizer.json ...      any tool can load these
        trainer/optimiser.safetensors                           master weights and moments
        trainer/policy.safetensors                              what the recipe remembers
        trainer/state.json                                      step, cursor, versions

A checkpoint is written beside its place and renamed into it, so a killed process leaves either a
whole one or none. Nothing random is saved: every seed is derived from the run's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from safetensors.torch import load_file, save_file

from burnish.errors import StoreError
from burnish.policy.state import PolicyState
from burnish.training.curriculum import CurriculumState
from burnish.training.optimiser import MasterAdamW


class TrainState(Struct, frozen=True, kw_only=True):
    """Where a run stands between two steps."""

    step: int = 0
    """Steps done."""
    cursor: int = 0
    weight_version: int = 0
    useless_streak: int = 0
    threads: int = 0
    """CPU threads of the run's first start."""
    curriculum: CurriculumState = CurriculumState()


def save(
    folder: Path,
    state: TrainState,
    optimiser: MasterAdamW,
    policy: PolicyState,
    write_model: Callable[[Path], None],
    keep: int,
) -> Path:
    """Write `step-N`, then remove all but the newest `keep`."""
    place = folder / f"step-{state.step:06d}"
    if place.exists():
        return place
    draft = folder / f".writing-{state.step:06d}-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "trainer").mkdir(parents=True)
    write_model(draft)
    tensors = {name: t.contiguous() for name, t in optimiser.state().items()}
    save_file(tensors, draft / "trainer" / "optimiser.safetensors")
    save_file(policy.tensors(), draft / "trainer" / "policy.safetensors")
    (draft / "trainer" / "state.json").write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    os.replace(draft, place)
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old)
    return place


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint; leftovers of a killed writer are swept away."""
    if not folder.exists():
        return None
    for draft in folder.glob(".writing-*"):
        shutil.rmtree(draft, ignore_errors=True)
    found = _all(folder)
    return found[-1] if found else None


def load_state(place: Path) -> TrainState:
    """The trainer's state of a checkpoint."""
    path = place / "trainer" / "state.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainState)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            f"checkpoint {place} has no readable trainer state ({error}); remove the folder to "
            "continue from the one before"
        ) from error


def load_optimiser(place: Path, optimiser: MasterAdamW) -> None:
    """Put master weights and moments back, bit for bit."""
    optimiser.load(load_file(place / "trainer" / "optimiser.safetensors"))


def load_policy(place: Path) -> PolicyState:
    """What the recipe remembered; checkpoints of earlier versions have none."""
    path = place / "trainer" / "policy.safetensors"
    return PolicyState.from_tensors(load_file(path)) if path.is_file() else PolicyState()


def _all(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("step-*") if p.is_dir())
