"""Start-up and step time of a tiny GRPO run, beside TRL's GRPOTrainer on the same model and work.

    python lab/benchmarks/tiny_step.py            # needs pip install -e '.[torch,bench]'
    python lab/benchmarks/tiny_step.py --json out.json

Work: a random Llama of 115 k parameters, 2 prompts x 4 rollouts x 16 tokens a step, float32, CPU.
Each program runs in a process of its own, TRL once for each thread count; CPU seconds do not move
with the load of the machine, wall seconds do. Steps count from the fourth on (median).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEPS = 40
WARM = 4


def child(command: list[str], threads: int | None = None) -> tuple[str, float]:
    """Standard output and CPU seconds of a command."""
    env = {**os.environ}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    before = os.times()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    cpu = after.children_user + after.children_system
    return done.stdout, cpu - before.children_user - before.children_system


def least(command: list[str], times: int = 3) -> float:
    """The least CPU seconds of a few runs: the others paid for a cold cache."""
    return min(child(command)[1] for _ in range(times))


def worker(name: str, threads: int | None) -> dict[str, Any]:
    """Run one program; its marks are (CPU, wall) seconds since process start at each step's end."""
    output, _ = child([sys.executable, str(HERE / f"_{name}_tiny.py"), str(STEPS)], threads)
    marks = json.loads(output.strip().splitlines()[-1])
    steps = [
        (b[0] - a[0], b[1] - a[1]) for a, b in zip(marks[WARM:], marks[WARM + 1 :], strict=False)
    ]
    return {
        "program": name,
        "threads": threads or "own choice",
        "first_step_cpu_s": marks[0][0],
        "step_cpu_s": statistics.median(s[0] for s in steps),
        "step_wall_s": statistics.median(s[1] for s in steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--without-trl", action="store_true")
    options = parser.parse_args()
    python = sys.executable
    figures: dict[str, Any] = {
        "import_cpu_s": least([python, "-c", "import burnish"]),
        "help_cpu_s": least([python, "-m", "burnish", "--help"]),
    }
    rows = [worker("burnish", None)]
    if not options.without_trl:
        rows += [worker("trl", threads) for threads in (1, 2)]
    figures["programs"] = rows
    print(f"import burnish    {figures['import_cpu_s']:.3f} CPU s")
    print(f"burnish --help    {figures['help_cpu_s']:.3f} CPU s")
    print(f"{'program':10} {'threads':>10} {'first step':>12} {'step CPU':>10} {'step wall':>10}")
    for row in rows:
        print(
            f"{row['program']:10} {row['threads']!s:>10} {row['first_step_cpu_s']:10.2f} s "
            f"{1000 * row['step_cpu_s']:7.1f} ms {1000 * row['step_wall_s']:7.1f} ms"
        )
    if len(rows) > 1:
        for kind in ("cpu", "wall"):
            best = min(row[f"step_{kind}_s"] for row in rows[1:])
            figures[f"ratio_{kind}"] = best / rows[0][f"step_{kind}_s"]
        print(
            f"TRL at its best thread count takes {figures['ratio_cpu']:.1f} times the CPU and "
            f"{figures['ratio_wall']:.1f} times the wall seconds of burnish a step"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
