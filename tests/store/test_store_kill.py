"""A writer killed at any moment loses no sample of a call that returned, and tears no step."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from store_samples import make_sample, make_step

from burnish.store import RunStatus, RunStore, list_runs

WRITER = """
import sys
from pathlib import Path
from store_samples import make_sample, make_step
from burnish.store import RunStore

folder = Path(sys.argv[1])
exists = (folder / "config.json").exists()
store = RunStore.open(folder) if exists else RunStore.create(folder, {}, {})
# As after a resume: the newest steps are done again, then new ones follow.
step = max(0, (store.last_step() or 0) - 2)
while True:
    store.append_rollouts(step, make_step(step))
    store.append_metrics(step, {f"m{k}": step / (k + 1) for k in range(30)})
    store.append_evaluation(step, "a", [make_sample(step, 0, split="eval:a")], {"score": step})
    print(step, flush=True)
    step += 1
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip


def kill_after(writer: subprocess.Popen[str], seconds: float) -> list[int]:
    """The steps that the writer had told of when it died."""
    assert writer.stdout is not None
    first = writer.stdout.readline()
    time.sleep(seconds)
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read()
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    # A line cut off by the kill is not a step that was told of.
    return [int(line) for line in (first + rest).splitlines(keepends=True) if line[-1] == "\n"]


def assert_whole(folder: Path, told: int) -> None:
    """Every step up to the newest that a writer told of is there, whole and once."""
    with RunStore.open(folder, read_only=True) as store:
        steps = store.steps()
        assert steps == list(range(len(steps)))
        assert told in (steps[-1], steps[-1] - 1)
        for step in steps:
            assert store.rollouts(step) == make_step(step)
        numbers = store.metrics()
        assert len(numbers) == 30
        assert {len(curve) for curve in numbers.values()} <= {len(steps), len(steps) - 1}
        assert all(curve[told].step == told for curve in numbers.values())
        evaluated = [e.step for e in store.evaluations()]
        assert evaluated == list(range(len(evaluated)))
        assert len(evaluated) > told
        samples = list(store.samples(split="eval:a"))
        assert samples == [make_sample(step, 0, split="eval:a") for step in evaluated]


def test_kills_at_random_moments_lose_and_double_nothing(tmp_path):
    folder = tmp_path / "run"
    rng = random.Random(2)
    last = -1
    for _ in range(5):
        told = kill_after(start(folder), rng.uniform(0.0, 0.08))
        # A writer begins by repeating the newest steps, and may die before it has caught up.
        last = max(last, told[-1])
        assert_whole(folder, last)
    assert [info.status for info in list_runs(tmp_path)] == [RunStatus.CRASHED]
    with RunStore.open(folder) as store:
        assert store.summary().sessions == 6


def test_a_reader_beside_a_writer_sees_only_whole_steps(tmp_path):
    folder = tmp_path / "run"
    writer = start(folder)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        seen = set()
        with RunStore.open(folder, read_only=True) as store:
            deadline = time.monotonic() + 120
            while len(seen) < 5 and time.monotonic() < deadline:
                last = store.last_step()
                assert last is not None
                assert store.rollouts(last) == make_step(last)
                seen.add(last)
            assert store.status() is RunStatus.RUNNING
    finally:
        writer.kill()
        writer.communicate()
    assert len(seen) == 5
