"""From a cold start to the first checked answers of the `mathematics` reward, and after a kill.

    python lab/benchmarks/checking_start.py
    python lab/benchmarks/checking_start.py --processes 8

CPU seconds of all checking processes together, read from /proc before they are closed; they hardly
move with the load of the machine, wall seconds do. "After a kill" is what a job that ran into its
clock costs before the next answer.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from burnish.rewards.pool import Pool

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def descendants_cpu_s(root: int) -> float:
    """CPU seconds of every process below `root`, of ended and reaped ones too."""
    stats: dict[int, tuple[int, int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended while we looked
                continue
            own, reaped = sum(map(int, words[11:13])), sum(map(int, words[13:15]))
            stats[int(entry.name)] = (int(words[1]), own, reaped)
    family, found = {root}, 0
    while found != len(family):
        found = len(family)
        family |= {pid for pid, (parent, *_) in stats.items() if parent in family}
    below = sum(sum(stats[pid][1:]) for pid in family - {root})
    return (below + stats[root][2]) / TICKS_A_SECOND


def jobs(count: int) -> list[dict[str, object]]:
    return [{"answer": f"x+{i}", "golds": [f"{i}+x"], "explicit": True} for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    from burnish.rewards.checks.mathematics import Mathematics

    pool = Pool(options.processes)
    spent = 0.0

    def measure(what: str, work: list[dict[str, object]], timeout_s: float) -> None:
        nonlocal spent
        began = time.perf_counter()
        outcomes = pool.run(Mathematics.child, work, timeout_s=timeout_s)
        wall = time.perf_counter() - began
        now = descendants_cpu_s(os.getpid())
        statuses = {str(outcome.status) for outcome in outcomes}
        print(
            f"{what:34} {now - spent:6.2f} CPU s {wall:6.2f} s on the wall  {', '.join(statuses)}"
        )
        spent = now

    measure("first answer", jobs(1), 30)
    measure(f"an answer from {options.processes} processes", jobs(options.processes * 8), 30)
    tower = [{"answer": "9^{9^{9^{9}}}", "golds": ["9^{9^{9^{8}}}"], "explicit": True}]
    measure("a job past its clock of 0.2 s", tower, 0.2)
    measure("the next answers", jobs(options.processes), 30)
    pool.close()


if __name__ == "__main__":
    main()
