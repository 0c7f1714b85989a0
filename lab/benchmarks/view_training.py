"""Whether an open viewer slows a training down: steps with and without one, by turns.

    python lab/benchmarks/view_training.py --steps 300

One training of the tiny model goes on while a viewer is open. In every second window of a few
seconds its pages are asked for, every two seconds, as an open page does (pulse, curves, steps, newest
samples, a filtered search, facets); in the windows between nobody asks. Steps of both kinds of window
lie side by side, so that whatever else the machine does falls on both. Steps across a border are
left out. The interval is a bootstrap over pairs of neighbouring windows.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from view_million import Server

from burnish.store import RunStore

RECIPE = """
steps = {steps}
[model]
path = "tiny"
threads = 1
[task]
kind = "arithmetic"
[[rewards]]
kind = "length"
unit = "characters"
min = 2
edge = 8
[rollout]
prompts = 8
samples = 8
max_tokens = 24
[evaluation]
prompts = 0
[checkpoint]
every = 1000
[guards]
useless_steps = 100000
"""
PAGES = ("pulse", "metrics", "steps", "samples", "samples?status=ok&sort=reward", "facets")
EVERY_S = 2.0
WARM = 5
"""First steps of a run that are not counted."""
NAME = "viewed"


def start(folder: Path, steps: int) -> subprocess.Popen[bytes]:
    """A training of its own process."""
    recipe = folder / "small.toml"
    recipe.write_text(RECIPE.format(steps=steps))
    words = [sys.executable, "-m", "burnish", "train", str(recipe), f"run.name={NAME}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*words, "--quiet", "--runs", str(folder / "runs")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def look(
    server: Server, training: subprocess.Popen[bytes], window_s: float, is_control: bool
) -> float:
    """Ask in every second window until the training ends; when the first window began."""
    begin = time.time()
    asked = 0
    while training.poll() is None:
        elapsed = time.time() - begin
        if int(elapsed / window_s) % 2 and not is_control:
            for page in PAGES:
                server.client.get(f"/runs/{NAME}/{page}")
            server.client.get("/runs")
            asked += 1
        time.sleep(EVERY_S - (time.time() - begin) % EVERY_S)
    print(f"pages were asked for {asked} times, {len(PAGES) + 1} requests each")
    return begin


def windows(folder: Path, begin: float, window_s: float) -> dict[int, list[float]]:
    """Seconds of the steps that lie wholly in one window, by window."""
    with RunStore.open(folder / "runs" / NAME, read_only=True) as store:
        points = store.metrics("time/step_s")["time/step_s"]
        stored = dict(store.query("SELECT step, time FROM rollouts"))
    found: dict[int, list[float]] = {}
    for (step, seconds), (after, _) in itertools.pairwise(points[WARM:]):
        # Rollouts are stored in the middle of a step: it lies between its neighbours' stamps.
        first, last = (
            datetime.datetime.fromisoformat(stored[s]).timestamp() - begin
            for s in (step - 1, after)
        )
        if first >= 0 and int(first / window_s) == int(last / window_s) and seconds is not None:
            found.setdefault(int(first / window_s), []).append(seconds)
    return found


def ratios(found: dict[int, list[float]]) -> list[float]:
    """Median step of each viewed window over that of its two quiet neighbours."""
    kept = {number: statistics.median(steps) for number, steps in found.items() if len(steps) >= 3}
    return [
        kept[n] / statistics.fmean([kept[n - 1], kept[n + 1]])
        for n in kept
        if n % 2 and n - 1 in kept and n + 1 in kept
    ]


def report(name: str, values: list[float]) -> None:
    """The geometric mean with a bootstrap interval."""
    rng = random.Random(0)
    logs = [math.log(value) for value in values]
    draws = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(4000))
    low, middle, high = (math.exp(x) for x in (draws[100], statistics.fmean(logs), draws[3900]))
    print(f"{name}: {middle:.3f} [{low:.3f}, {high:.3f}] over {len(values)} windows")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--window", type=float, default=8.0, help="seconds")
    parser.add_argument("--control", action="store_true", help="ask for nothing in any window")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runs").mkdir()
        server = Server(folder / "runs", folder / "cache")
        try:
            training = start(folder, options.steps)
            while not (folder / "runs" / NAME / "config.json").exists():
                time.sleep(0.1)
            begin = look(server, training, options.window, options.control)
        finally:
            server.stop()
        found = windows(folder, begin, options.window)
    steps = [s for number in found for s in found[number]]
    print(f"{len(steps)} whole steps of {statistics.median(steps):.3f} s (median)")
    report("viewed / not viewed", ratios(found))


if __name__ == "__main__":
    main()
