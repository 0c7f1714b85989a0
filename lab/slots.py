"""One run from its recipe file to its record: train, measure, collect, clear away.

Training and measuring are processes of their own, so that one that fails takes nothing along. A
failed run has a status and a reason, never a figure.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.collect import Row, collect
from lab.plan import Measure
from lab.recipes import WARM_START

FINISHED = "finished"
FAILED = "failed"
START_MARK = "start.digest"
"""Says of the start weights beside it what they were made with, and which they are."""


@dataclass(frozen=True)
class Slot:
    """One run that is to be done."""

    study: str
    arm: str
    seed: int
    recipe: Path
    """Its file; its run's folder, log and record stand beside it under the same name."""
    digest: str
    start: Path | None
    """Start weights, for measures that compare with them."""
    start_id: str = ""
    """Which start weights: runs are alike only where this is the same."""
    measure: str = ""
    """`module:function`; empty where the run's own evaluation is enough."""
    prompts: int = 0
    device: str = "auto"

    @property
    def folder(self) -> Path:
        return self.recipe.with_suffix("")

    @property
    def record(self) -> Path:
        return self.recipe.with_name(f"{self.recipe.stem}.record.json")

    @property
    def log(self) -> Path:
        return self.recipe.with_name(f"{self.recipe.stem}.log")


@dataclass(frozen=True)
class Record:
    """What is known of a run once it is over."""

    study: str
    arm: str
    seed: int
    status: str
    reason: str
    digest: str
    row: Row
    curves: list[Row]


class Broken(Exception):
    """A process of a slot ended badly."""


def path_of(measure: Measure | None) -> str:
    """How another process finds a measure."""
    return f"{measure.__module__}:{measure.__qualname__}" if measure else ""


def stored(slot: Slot) -> Record | None:
    """The record of an earlier, finished run of the same settings."""
    try:
        record = Record(**json.loads(slot.record.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none, or one that a killed process left half
        return None
    is_same = record.digest == _identity(slot) and record.status == FINISHED
    return record if is_same else None


def work(slot: Slot, threads: int, timeout_s: float) -> Record:
    """Do a run, or report why it could not be done."""
    began = time.perf_counter()
    row: Row = {}
    curves: list[Row] = []
    status, reason = FINISHED, ""
    try:
        _train(slot, threads, timeout_s)
        trained_s = time.perf_counter() - began
        measured = _measured(slot, threads, timeout_s)
        row, curves = collect(slot.folder)
        row = {**row, **measured, "process_s": trained_s, "start": slot.start_id}
    except Broken as error:
        status, reason, row, curves = FAILED, str(error), {}, []
    finally:
        shutil.rmtree(slot.folder / "checkpoints", ignore_errors=True)
    return _keep(slot, status, reason, row, curves)


def measure_start(slot: Slot, model: Path, threads: int, timeout_s: float) -> Record:
    """The slot's measure on the start weights alone."""
    try:
        slot.log.unlink(missing_ok=True)
        row = _measure(slot, model, threads, timeout_s)
    except Broken as error:
        return _keep(slot, FAILED, str(error), {}, [])
    return _keep(slot, FINISHED, "", {**row, "start": slot.start_id}, [])


def _keep(slot: Slot, status: str, reason: str, row: Row, curves: list[Row]) -> Record:
    identity = _identity(slot)
    record = Record(slot.study, slot.arm, slot.seed, status, reason, identity, row, curves)
    draft = slot.record.with_suffix(".draft")
    draft.write_text(json.dumps(vars(record)), encoding="utf-8")
    os.replace(draft, slot.record)
    return record


def make_start(recipe: Path, digest: str, threads: int, timeout_s: float) -> str:
    """Make the start weights in the folder named like the recipe; a reason where that failed."""
    folder = recipe.with_suffix("")
    mark = recipe.with_name(START_MARK)
    weights = recipe.parent / WARM_START
    has_weights = weights.is_dir()
    if has_weights and mark.is_file() and mark.read_text().partition(" ")[0] == digest:
        return ""
    mark.unlink(missing_ok=True)
    try:
        _train(Slot("", "", 0, recipe, digest, None), threads, timeout_s)
    except Broken as error:
        return f"the warm start failed: {error}"
    if not weights.is_dir():
        return (
            f"the warm start failed: {recipe.name} has no stage 'warm_start'; add it to the recipe"
        )
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    with (weights / "model.safetensors").open("rb") as file:
        mark.write_text(f"{digest} {hashlib.file_digest(file, 'sha256').hexdigest()[:8]}")
    return ""


def start_id(folder: Path) -> str:
    """The beginning of the digest of a study's start weights; empty where there are none."""
    mark = folder / START_MARK
    return mark.read_text().partition(" ")[2] if mark.is_file() else ""


def _measure(slot: Slot, model: Path, threads: int, timeout_s: float) -> Row:
    """The figures of a slot's measure on any model folder."""
    out = slot.recipe.with_name(f"{slot.recipe.stem}.measured.json")
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "lab.measure", slot.measure, str(model)]
    command += ["--start", str(slot.start or model), "--out", str(out)]
    command += ["--device", slot.device, "--prompts", str(slot.prompts)]
    _call(command, slot.log, threads, timeout_s, "measuring")
    found: Row = json.loads(out.read_text(encoding="utf-8"))
    return found


def _identity(slot: Slot) -> str:
    return f"{slot.digest} {slot.start_id} {slot.measure} {slot.prompts}"


def _train(slot: Slot, threads: int, timeout_s: float) -> None:
    # What a killed process left is begun anew: a run that was interrupted has no honest time.
    shutil.rmtree(slot.folder, ignore_errors=True)
    slot.log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "burnish", "train", str(slot.recipe), "--quiet"]
    command += ["--runs", str(slot.folder.parent)]
    _call(command, slot.log, threads, timeout_s, "training")


def _measured(slot: Slot, threads: int, timeout_s: float) -> Row:
    if not slot.measure:
        return {}
    checkpoints = sorted((slot.folder / "checkpoints").glob("step-*"))
    if not checkpoints:
        raise Broken("training left no checkpoint")
    return _measure(slot, checkpoints[-1], threads, timeout_s)


def _call(command: list[str], log: Path, threads: int, timeout_s: float, what: str) -> None:
    environment: dict[str, Any] = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
    }
    with log.open("a", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise Broken(f"{what} took longer than {timeout_s:.0f} s") from None
    if done.returncode:
        raise Broken(f"{what} ended with code {done.returncode}: {_said(log)}")


def _said(log: Path) -> str:
    """The last complaint in a log, or else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    complaints = [line for line in lines if line.startswith(("burnish:", "warning: stopped"))]
    return (complaints or lines or ["it said nothing"])[-1][:300]
