"""What the sandbox costs, and HumanEval through it.

python lab/benchmarks/sandbox.py [HUMANEVAL.parquet]
"""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable

import anyio

from burnish.records import Message, Response, Task
from burnish.rewards import Code, CodeConfig, checked
from burnish.tools import Exam, Sandbox

RUNS = 40
SETS: dict[str, list[str] | None] = {
    "all that work here": None,
    "landlock, seccomp": ["landlock", "seccomp"],
    "limits only": [],
}


def cpu_s() -> float:
    """Processor seconds of this process and of all its children so far."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def measured(name: str, action: Callable[[], object]) -> None:
    times, before = [], cpu_s()
    for _ in range(RUNS):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    used = 1e3 * (cpu_s() - before) / RUNS
    print(
        f"{name:40} median {statistics.median(times):6.1f} ms  fastest {min(times):6.1f} ms  "
        f"processor {used:6.1f} ms"
    )


def humaneval(path: str) -> None:
    """Every task with its own solution and with one that returns None."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path).to_pylist()
    scorer = Code(CodeConfig(timeout_s=60))
    values: dict[str, list[float | None]] = {"solution": [], "None": []}

    async def main() -> None:
        for row in rows:
            fields = {key: row[key] for key in ("test", "entry_point", "prompt")}
            task = Task(row["task_id"], (Message("user", row["prompt"]),), fields)
            answers = [Response("a", row["canonical_solution"]), Response("b", "    return None\n")]
            rewards = await checked(scorer, task, answers)
            for kept, reward in zip(values.values(), rewards, strict=True):
                kept.append(reward.value)

    start = time.perf_counter()
    anyio.run(main)
    took = time.perf_counter() - start
    for name, kept in values.items():
        print(
            f"{name:10} {kept.count(1.0)} of {len(rows)} at 1.0, {kept.count(None)} without a value"
        )
    print(f"{2 * len(rows)} responses in {took:.1f} s with {scorer.sandbox.workers} at a time")


def main() -> None:
    print(f"{os.uname().machine}, Linux {os.uname().release}, load {os.getloadavg()[0]:.1f}")
    for name, layers in SETS.items():
        sandbox = Sandbox(layers=layers, allow_weak=True)
        report = sandbox.probe()
        measured(f"a run, {name} ({report.strength.value})", lambda s=sandbox: s.run("print(1)"))  # type: ignore[misc]
    sandbox = Sandbox(allow_weak=True)
    exam = Exam("def f(x): return x", ("assert f(1) == 1",))
    measured("an examination (two processes)", lambda: sandbox.examine(exam))
    if len(sys.argv) > 1:
        humaneval(sys.argv[1])


if __name__ == "__main__":
    main()
