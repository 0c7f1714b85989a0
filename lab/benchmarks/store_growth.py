"""What a training step pays for the store with 1,000 and with 100,000 samples in it.

    python lab/benchmarks/store_growth.py
    python lab/benchmarks/store_growth.py --rollouts 2x4x16 --samples 1000 30000

Runs whose stores were filled before take turns, first with real steps of the tiny model, then with
appended steps of made-up rollouts, so that the load of the machine meets all alike. Each size is
there twice: "by task", where samples are indexed by task alone and commits fold the write-ahead log
into the file, and "as it is", where a thread folds it beside the steps. `step` is the CPU time of a
real step, `store` that of an appended one (medians); `pages` is what it writes; `fold` is what
folding the log takes on the wall for each step (mean), which "by task" the steps wait for.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from burnish.config import Config, load
from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.store import RunStore, StoredSample, database as store_database
from burnish.training import build
from burnish.training.trainer import Trainer

HERE = Path(__file__).parent
WARM = 3
FOLD_PAGES = 1000
BY_TASK_ALONE = (
    "DROP INDEX samples_by_task",
    "CREATE INDEX samples_by_task ON samples (task_id, step)",
)


class Shape(NamedTuple):
    """Rollouts of a step."""

    prompts: int
    answers: int
    tokens: int


class Measured:
    """One run with so many samples in its store, and what its steps took."""

    def __init__(self, folder: Path, shape: Shape, samples: int, *, by_task: bool) -> None:
        self.shape, self.samples, self.by_task = shape, samples, by_task
        self.trainer: Trainer = build(load(Config, recipe(shape)), folder, root=HERE)
        self.connection = self.trainer.store._database._connection
        if by_task:
            for statement in BY_TASK_ALONE:
                self.connection.execute(statement)
        self.rng = random.Random(1)
        self.steps = samples // (shape.prompts * shape.answers)
        for step in range(self.steps):
            append(self.trainer.store, step, shape, self.rng)
        self.connection.execute("PRAGMA wal_autocheckpoint = 0")
        self.trainer.stage.state = msgspec.structs.replace(self.trainer.state, step=self.steps)
        self.step_cpu_s: list[float] = []
        self.store_cpu_s: list[float] = []
        self.fold_s = 0.0
        self.pages = 0

    def real_step(self) -> None:
        began = time.thread_time()
        self.trainer._step()
        self.step_cpu_s.append(time.thread_time() - began)
        self.steps += 1

    def appended_step(self) -> None:
        append(self.trainer.store, self.steps, self.shape, self.rng, self.store_cpu_s)
        self.steps += 1
        log = self.trainer.folder / "run.db-wal"
        pages = (log.stat().st_size - 32) // (24 + store_database.PAGE_BYTES)
        if pages >= FOLD_PAGES:
            self.fold()
            self.pages += pages

    def fold(self) -> None:
        """Fold the log as SQLite does in a commit, and begin it anew so that its pages count."""
        began = time.perf_counter()
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.fold_s += time.perf_counter() - began

    def begin_appending(self) -> None:
        self.fold()
        self.fold_s, self.pages, self.first = 0.0, 0, self.steps

    def line(self) -> str:
        appended = self.steps - self.first
        return (
            f"{'by task' if self.by_task else 'as it is':9} {self.samples:8} "
            f"{1000 * statistics.median(self.step_cpu_s[WARM:]):7.1f} CPU ms "
            f"{1000 * statistics.median(self.store_cpu_s):6.2f} CPU ms "
            f"{self.pages / appended:7.1f} {1000 * self.fold_s / appended:7.2f} ms"
        )


def recipe(shape: Shape) -> dict[str, Any]:
    return {
        "steps": 10**6,
        "model": {"path": "tiny", "threads": 1},
        "task": {"kind": "arithmetic", "level": 1},
        "rewards": [{"kind": "function", "path": "_tiny_reward.py:has_digit"}],
        "rollout": {
            "prompts": shape.prompts,
            "samples": shape.answers,
            "max_tokens": shape.tokens,
        },
        "optimiser": {"learning_rate": 0.0},
        "evaluation": {"prompts": 0},
        "checkpoint": {"every": 0},
        "guards": {"useless_steps": 10**6},
    }


def append(
    store: RunStore,
    step: int,
    shape: Shape,
    rng: random.Random,
    cpu_s: list[float] | None = None,
) -> None:
    """Store one step of made-up rollouts to tasks of random names; its CPU time goes to `cpu_s`."""
    asked = Span(Author.PROMPT, tuple(range(60)))
    logprobs = tuple(-rng.random() for _ in range(shape.tokens))
    said = Span(Author.MODEL, (65,) * shape.tokens, logprobs, trainable=True)
    samples = []
    for group in range(shape.prompts):
        name = f"arithmetic-{rng.getrandbits(64):016x}"
        task = Task(name, (Message("user", "2 + 3 = ?"),), {"answer": "5"})
        for member in range(shape.answers):
            trajectory = Trajectory(
                id=f"{step}.{group}.{member}",
                task_id=name,
                group=f"{step}.{group}",
                spans=(asked, said),
                text="A" * shape.tokens,
                weight_version=step,
            )
            samples.append(
                StoredSample(
                    step=step,
                    split="train",
                    index=len(samples),
                    task=task,
                    trajectory=trajectory,
                    reward=Reward("has_digit", float(member % 2)),
                    advantage=0.5,
                )
            )
    values = {i: [0.5] * shape.tokens for i in range(len(samples))}
    metrics = {f"metric/{i}": float(i) for i in range(60)}
    began = time.thread_time()
    store.append_rollouts(step, samples)
    store.append_token_values(step, "entropy", values)
    store.append_metrics(step, metrics)
    if cpu_s is not None:
        cpu_s.append(time.thread_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", default="8x8x16")
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--steps", type=int, default=20, help="real steps of each run")
    parser.add_argument("--appended", type=int, default=300, help="appended steps of each run")
    options = parser.parse_args()
    shape = Shape(*(int(word) for word in options.rollouts.split("x")))
    store_database.FOLD_EVERY_S = float("inf")  # folding is timed here, apart from the steps
    with tempfile.TemporaryDirectory() as place:
        runs = [
            Measured(Path(place) / f"{samples}-{by_task}", shape, samples, by_task=by_task)
            for by_task in (True, False)
            for samples in options.samples
        ]
        for _ in range(WARM + options.steps):
            for run in runs:
                run.real_step()
        for run in runs:
            run.begin_appending()
        for _ in range(options.appended):
            for run in runs:
                run.appended_step()
        print(f"{'':9} {'samples':>8} {'step':>14} {'store':>13} {'pages':>7} {'fold':>10}")
        for run in runs:
            print(run.line())
            run.trainer.store.close()


if __name__ == "__main__":
    main()
