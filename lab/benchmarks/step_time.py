"""How long a training step takes, after and before: the same steps in turn, one tree beside the other.

    python -m lab.benchmarks.step_time --against COMMIT               # tiny and smollm2 on the CPU
    python -m lab.benchmarks.step_time --before FOLDER --cases tiny --pairs 60

Each tree trains in a process of its own, which waits while the other works. A pair is so many steps of
both; printed are the ratio of the medians, that of the least times and the quartiles of the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from lab.fingerprint.__main__ import ROOT, checkout

COMMON = {
    "steps": 1_000_000,
    "task": {"kind": "arithmetic", "level": 1},
    "evaluation": {"every": 0, "prompts": 2},
    "checkpoint": {"every": 0},
    "guards": {"useless_steps": 1_000_000, "sampler_mismatch_stop": 1e6},
}
CASES = {
    "tiny": {
        "model": {"path": "tiny"},
        "rewards": [{"kind": "length", "max": 4, "edge": 12}],
        "rollout": {"max_tokens": 16},
        "optimiser": {"learning_rate": 1e-3},
    },
    "smollm2": {
        "model": {"path": "smollm2", "dtype": "float32"},
        "rewards": [{"kind": "numeric"}],
        "rollout": {"max_tokens": 12, "prompts": 4, "samples": 4},
        "optimiser": {"learning_rate": 1e-6},
    },
}
STEPS = {"tiny": 5, "smollm2": 2}
"""Of each half of a pair."""
WARM_UP = 6
CHILD = f"""
import json, sys, time
from pathlib import Path
from burnish.config import Config, load
from burnish.training import build
from burnish.training.events import StepDone
folder = Path(sys.argv[1])
events = iter(build(load(Config, json.loads(sys.argv[2])), folder / "run", root=folder).run())
def go(steps):
    while steps:
        steps -= isinstance(next(events), StepDone)
go({WARM_UP})
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    go(int(line))
    print(time.perf_counter() - start, flush=True)
"""


class Tree:
    """One tree's process; `seconds` has it take some steps."""

    def __init__(self, source: Path, folder: str, case: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        command = [sys.executable, "-c", CHILD, folder, json.dumps(COMMON | CASES[case])]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def seconds(self, steps: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a tree's training ended early; its error stands above")
        return line


def compare(before: Path, after: Path, case: str, pairs: int) -> None:
    with ExitStack() as stack:
        trees = []
        for source in (before, after):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            trees.append(Tree(source, folder, case))
            stack.callback(trees[-1].process.kill)
        times: tuple[list[float], list[float]] = ([], [])
        for pair in range(pairs):  # whoever goes first goes second in the next pair
            for place in ((0, 1), (1, 0))[pair % 2]:
                times[place].append(trees[place].seconds(STEPS[case]))
    old, new = times
    low, middle, high = statistics.quantiles((b / a for a, b in zip(old, new, strict=True)), n=4)
    print(
        f"{case}: a step {1000 * statistics.median(new) / STEPS[case]:.1f} ms, after / before "
        f"{statistics.median(new) / statistics.median(old):.3f} of the medians, "
        f"{min(new) / min(old):.3f} of the least, pairs {middle:.3f} [{low:.3f}, {high:.3f}]",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--against", metavar="COMMIT", help="the tree of before, by its commit")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="or by its `src` folder")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--pairs", type=int, default=40)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        before = chosen.before or stack.enter_context(checkout(chosen.against or "HEAD"))
        for case in chosen.cases:
            compare(before, ROOT / "src", case, chosen.pairs)


if __name__ == "__main__":
    main()
