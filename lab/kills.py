"""Kill every part of a small run at five moments and hold what it leaves against the undisturbed run.

    python -m lab.kills --kind ray /tmp/kills

For each part (trainer, samplers, judges) one run: after each of five steps its process gets SIGKILL,
on Ray in turn with the actor that started it. Then a run whose sampler gets SIGSTOP. The samples and
rewards in the store must be those of a run in one process that nobody disturbs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.errors import StoreError
from burnish.store import RunStore

CONFIG = """
steps = 16
[task]
kind = "arithmetic"
[[rewards]]
kind = "function"
path = "slow.py:slow"
[model]
path = "tiny"
device = "cpu"
threads = 1
[rollout]
prompts = 4
samples = 4
max_tokens = 16
[optimiser]
learning_rate = 1e-3
[evaluation]
prompts = 4
[checkpoint]
every = 2
"""
REWARD = """
import time

def slow(text, task):
    time.sleep(0.2)
    return sum(c.isascii() for c in text) / (1 + len(text))
"""
MOMENTS = (1, 4, 7, 10, 13)
"""Steps after which a part is killed, each a little later in the next step."""
HEARTBEAT_S = 8.0
MOST_S = 540.0
"""A run that takes longer has failed."""


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """Every sample of a run with its reward."""
    with RunStore.open(folder, read_only=True) as store:
        kept = [
            (s.step, s.split, s.index, s.task.id, s.trajectory.text, s.reward.value)
            for s in store.samples()
        ]
    return sorted(kept)


def steps_done(folder: Path) -> int:
    try:
        with RunStore.open(folder, read_only=True) as store:
            return int(next(iter(store.query("SELECT COUNT(DISTINCT step) FROM metrics")))[0])
    except StoreError:
        return 0


def process_of(folder: Path, part: str, starts: int) -> int:
    """The process of the part's so-manieth start, which may still be due."""
    found: list[str] = []
    while len(found) < starts:
        time.sleep(0.05)
        said = (folder / "cluster" / "events.log").read_text()
        found = re.findall(rf"{part} runs as process (\d+)", said)
    return int(found[-1])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def start(home: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "burnish", "train", "config.toml", f"run.name={name}"]
    said = (home / f"{name}.txt").open("wb")
    return subprocess.Popen(
        [*command, "run.folder=.", "--quiet", *words],
        cwd=home,
        stdout=said,
        stderr=said,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def disturbed(
    home: Path, name: str, words: list[str], hurt: Callable[[Path, int], None], moments: int
) -> tuple[int, float]:
    """A run that is hurt after so many of its steps; its exit code and seconds."""
    began, running = time.monotonic(), start(home, name, *words)
    for number, moment in enumerate(MOMENTS[:moments]):
        while steps_done(home / name) < moment and running.poll() is None:
            if time.monotonic() - began > MOST_S:
                running.kill()
            time.sleep(0.05)
        time.sleep(0.15 * number)
        if running.poll() is None:
            hurt(home / name, number)
    return running.wait(MOST_S), time.monotonic() - began


def killer(part: str, kind: str) -> Callable[[Path, int], None]:
    def kill(folder: Path, number: int) -> None:
        pid = process_of(folder, part, number + 1)
        os.kill(parent_of(pid) if kind == "ray" and number % 2 else pid, signal.SIGKILL)

    return kill


def stop(folder: Path, number: int) -> None:
    os.kill(process_of(folder, "sampler-0", 1), signal.SIGSTOP)
    (folder / "stopped").write_text(datetime.now().astimezone().isoformat())


def found_after(folder: Path) -> float:
    """Seconds until the supervisor said that the stopped sampler gives no sign of life."""
    said = (folder / "cluster" / "events.log").read_text()
    found = re.search(r"(\S+) sampler-0 gave no sign of life", said)
    assert found is not None, said
    stopped = datetime.fromisoformat((folder / "stopped").read_text())
    return (datetime.fromisoformat(found[1]) - stopped).total_seconds()


def main(
    home: Annotated[Path, typer.Argument(help="An empty folder for the runs.")],
    kind: str = "ray",
    samplers: int = 2,
    judges: int = 2,
    parts: str = "trainer-0,sampler-0,sampler-1,judge-0,judge-1",
) -> None:
    home.mkdir(parents=True)
    (home / "config.toml").write_text(CONFIG)
    (home / "slow.py").write_text(REWARD)
    assert start(home, "whole").wait(MOST_S) == 0, (home / "whole.txt").read_text()
    expected = rows(home / "whole")
    print(f"undisturbed, in one process: {len(expected)} samples", flush=True)
    words = [f"cluster={kind}", f"cluster.samplers={samplers}", f"cluster.judges={judges}"]
    words += ["cluster.restarts=5", f"cluster.heartbeat_s={HEARTBEAT_S}", "guards.quiet_s=4"]
    for part in filter(None, parts.split(",")):
        code, took_s = disturbed(home, part, words, killer(part, kind), len(MOMENTS))
        told = (home / part / "cluster" / "events.log").read_text()
        same = rows(home / part) == expected
        again = len(re.findall(rf"{part} .*started again", told))
        print(
            f"{part}: exit {code}, started again {again}, same {same}, {took_s:.0f} s", flush=True
        )
    code, took_s = disturbed(home, "hang", words, stop, 1)
    same, late_s = rows(home / "hang") == expected, found_after(home / "hang")
    print(
        f"SIGSTOP: exit {code}, found after {late_s:.1f} s of {HEARTBEAT_S:g}, same {same}, {took_s:.0f} s"
    )


if __name__ == "__main__":
    typer.run(main)
