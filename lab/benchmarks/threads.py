"""One CPU thread beside all of them, for real steps of the tiny model at several batch sizes.

    python lab/benchmarks/threads.py                      # 4 x 4, 8 x 8 and 16 x 16 rollouts of 16 tokens
    python lab/benchmarks/threads.py --sizes 8x8x16 --steps 120

The two take turns every five steps of one run. A step's parts (prefill, each decoded token, each
backward pass, the optimiser) are timed one by one, and a low quantile of each is added up, so that a
short disturbance costs little. A machine with other work on its cores shows that work: threads that
wait for each other lose there at every size. `burnish.lm.hardware` has the rule.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

# As the command sets it before torch is loaded: threads that wait do not spin for long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "100000")

import torch

from burnish.config import Config, load
from burnish.lm.hardware import choose_threads, usable_cores
from burnish.lm.sampler.engine import Schedule
from burnish.lm.sampler.step import Stepper
from burnish.training import build
from burnish.training.events import StepDone
from burnish.training.update import Updater

HERE = Path(__file__).parent
PARTS = ((Schedule, "_prefill"), (Stepper, "decode"), (Updater, "_accumulate"), (Updater, "_apply"))
TURN = 5
WARM = 5
LOW = 0.05


class Clock:
    """Seconds of each part of a step, apart for each thread count."""

    def __init__(self) -> None:
        self.threads = 1
        self.steps: Counter[int] = Counter()
        self.seconds: defaultdict[tuple[int, str], list[float]] = defaultdict(list)

    def watch(self, kind: type, name: str) -> None:
        """Time every call of a method from now on."""
        work: Callable[..., Any] = getattr(kind, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*given, **named)
            finally:
                self.seconds[self.threads, name].append(time.perf_counter() - began)

        setattr(kind, name, timed)

    def step_s(self, threads: int) -> float:
        """A step's parts at their low quantile, added up."""
        total = 0.0
        for (count, _), values in self.seconds.items():
            if count == threads:
                total += sorted(values)[int(LOW * len(values))] * len(values)
        return total / max(1, self.steps[threads])


def measure(clock: Clock, size: tuple[int, int, int], steps: int, cores: int) -> str:
    """One run in which one thread and all of them take turns; a line of the table."""
    prompts, samples, tokens = size
    clock.seconds.clear()
    clock.steps.clear()
    recipe = {
        "steps": WARM + steps,
        "model": {"path": "tiny", "threads": 1},
        "task": {"kind": "arithmetic", "level": 1},
        "rewards": [{"kind": "function", "path": "_tiny_reward.py:has_digit"}],
        "rollout": {"prompts": prompts, "samples": samples, "max_tokens": tokens},
        "evaluation": {"prompts": 0},
        "checkpoint": {"every": 0},
        "guards": {"useless_steps": 10**6},
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(load(Config, recipe), Path(folder) / "run", root=HERE)
        parameters = trainer.trainable.parameters
        clock.threads = 1
        for event in trainer.run():
            if not isinstance(event, StepDone):
                continue
            clock.steps[clock.threads] += 1
            if trainer.state.step == WARM:
                clock.seconds.clear()
                clock.steps.clear()
            if trainer.state.step % TURN == 0:
                clock.threads = 1 + cores - clock.threads
                torch.set_num_threads(clock.threads)
    one, all_s = clock.step_s(1), clock.step_s(cores)
    chosen = choose_threads(parameters, cores, prompts * samples)
    return (
        f"{prompts:3} x {samples:2} x {tokens:3}  {1000 * one:9.1f} ms {1000 * all_s:9.1f} ms "
        f"{one / all_s:8.2f}  {chosen:6}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["4x4x16", "8x8x16", "16x16x16"])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    cores = usable_cores()
    if cores < 2:
        parser.error("this process may use one core only; nothing to compare")
    clock = Clock()
    for kind, name in PARTS:
        clock.watch(kind, name)
    print(f"{'rollouts':13} {'one thread':>12} {f'{cores} threads':>12} {'gain':>8}  chosen")
    for text in options.sizes:
        prompts, samples, tokens = (int(word) for word in text.split("x"))
        print(measure(clock, (prompts, samples, tokens), options.steps, cores))


if __name__ == "__main__":
    main()
