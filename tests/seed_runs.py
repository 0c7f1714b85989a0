"""Runs made by hand: two settings with three seeds each, and the sweep that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.records import Author, Message, Reward, Span, Status, Task, Trajectory
from burnish.store import RunStore, StoredSample
from burnish.store.manifest import SweepRecord, SweepRun, write_sweep

CONFIG = {
    "steps": 4,
    "task.kind": "arithmetic",
    "rewards.0.kind": "numeric",
    "rewards.0.name": "right",
    "rewards.0.weight": 1.0,
    "evaluation.part": "",
    "optimiser.learning_rate": 1e-5,
    "run.name": "",
    "run.seed": 0,
}
AFTER = {"slow": (0.5, 0.6, 0.7), "fast": (0.6, 0.8, 0.7)}
"""Held-out scores by seed: both have a standard deviation of 0.1, and differ by 0.1, 0.2 and 0."""
RATES = {"slow": 1e-6, "fast": 3e-6}
SWEEP = "small-sweep"


def make_run(
    folder: Path,
    seed: int,
    rate: float,
    scores: Sequence[float | None],
    changes: Mapping[str, Any] | None = None,
) -> None:
    """A finished run with these held-out scores, one before and one after its four steps."""
    config = CONFIG | {"run.seed": seed, "optimiser.learning_rate": rate} | dict(changes or {})
    with RunStore.create(folder, config, {}, recipe="small") as store:
        for place, score in enumerate(scores):
            mark = None if score is None else 1.0
            found = None if score is None else [score, 0.0, 1.0, 10]
            summary = {"score": found, "marks": [mark]}
            store.append_evaluation(
                4 * place, "held_out", [_answer(4 * place, seed, mark)], summary
            )
        for step in range(4):
            times = {"time/step_s": 2.0, "length/tokens": 100.0}
            store.append_metrics(step, {"reward/total": 0.1 * step + seed}, timings=times)
        store.finish("finished")


def _answer(step: int, seed: int, mark: float | None) -> StoredSample:
    key = f"p{seed}"
    spans = (Span(Author.MODEL, (1,)),)
    late = Reward.failed("total", Status.TIMEOUT, "late")
    return StoredSample(
        step=step,
        split="eval:held_out",
        index=0,
        task=Task(key, (Message("user", f"What is {key}?"),), {"answer": "1"}),
        trajectory=Trajectory(f"eval.{step}.0", key, f"eval.{step}.0", spans, f"mark {mark}"),
        reward=late if mark is None else Reward("total", mark),
        keep=False,
    )


def make_sweep(folder: Path) -> Path:
    """Six runs and their sweep, of which a seventh was never started."""
    runs = []
    for name, rate in RATES.items():
        for seed, after in enumerate(AFTER[name]):
            make_run(folder / f"{name}-{seed}", seed, rate, (0.25, after))
            settings = {"optimiser.learning_rate": rate}
            words = ["small", f"optimiser.learning_rate={rate}", f"run.seed={seed}"]
            runs.append(SweepRun(name=f"{name}-{seed}", settings=settings, seed=seed, words=words))
    runs.append(SweepRun(name="fast-9", settings={}, seed=9, words=["small"], failure="no data"))
    record = SweepRecord(
        name=SWEEP,
        recipe="small",
        created="2026-01-01T00:00:00Z",
        grid={"optimiser.learning_rate": list(RATES.values())},
        seeds=[0, 1, 2],
        runs=runs,
    )
    write_sweep(folder, record)
    return folder
