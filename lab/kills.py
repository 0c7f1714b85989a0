"""Kill every part of a small run at five moments and hold what it leaves against the undisturbed run.

    python -m lab.kills /tmp/kills --kind ray

For each part (trainer, samplers, judges) one run: after each of five steps its process gets SIGKILL,
on Ray in turn with the actor that started it. Then a run whose sampler gets SIGSTOP. The samples and
rewards in the store must be those of a run in one process that nobody disturbs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.errors import StoreError
from burnish.store import RunStore

WORDS = (
    "grpo model=tiny model.device=cpu model.threads=1 rewards=slow.py:slow steps=16 rollout.prompts=4 "
    "rollout.samples=4 rollout.max_tokens=16 optimiser.learning_rate=1e-3 evaluation.prompts=4 "
    "checkpoint.every=2 guards.quiet_s=4 run.folder=. --quiet"
)
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
        return sorted(
            (s.step, s.split, s.index, s.task.id, s.trajectory.text, s.reward.value)
            for s in store.samples()
        )


def steps_done(folder: Path) -> int:
    try:
        with RunStore.open(folder, read_only=True) as store:
            return int(next(iter(store.query("SELECT COUNT(DISTINCT step) FROM metrics")))[0])
    except StoreError:
        return 0


def hurt(running: subprocess.Popen[bytes], folder: Path, part: str, number: int, kind: str) -> None:
    """SIGKILL to the part's next start, once it is made; SIGSTOP to a part that is to hang."""
    found: list[str] = []
    while len(found) <= number and running.poll() is None:
        time.sleep(0.05)
        found = re.findall(rf"{part} runs as process (\d+)", events(folder))
    # A run may end while others do the work of a part that is due.
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, IndexError):
        pid = int(found[number])
        if kind == "ray" and number % 2:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGSTOP if folder.name == "hang" else signal.SIGKILL)


def events(folder: Path) -> str:
    return (folder / "cluster" / "events.log").read_text()


def run(home: Path, name: str, words: list[str], part: str = "", moments: int = 5) -> str:
    """A run whose part is hurt after so many steps: how it ended."""
    folder, began, kind = home / name, time.monotonic(), words[0].partition("=")[2] if words else ""
    with (home / f"{name}.txt").open("wb") as said:
        running = subprocess.Popen(
            [sys.executable, "-m", "burnish", "train", *WORDS.split(), f"run.name={name}", *words],
            cwd=home,
            stdout=said,
            stderr=said,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for number, moment in enumerate(MOMENTS[: moments if part else 0]):
            while steps_done(folder) < moment and running.poll() is None:
                if time.monotonic() - began > MOST_S:
                    running.kill()
                time.sleep(0.05)
            time.sleep(0.15 * number)
            if running.poll() is None:
                hurt(running, folder, part, number, kind)
        code = running.wait(MOST_S)
    return f"exit {code}, {time.monotonic() - began:.0f} s"


def main(
    home: Annotated[Path, typer.Argument(help="An empty folder for the runs.")],
    kind: str = "ray",
    samplers: int = 2,
    judges: int = 2,
    parts: str = "trainer-0,sampler-0,sampler-1,judge-0,judge-1,hang",
) -> None:
    home.mkdir(parents=True)
    (home / "slow.py").write_text(REWARD)
    print("undisturbed, in one process:", run(home, "whole", []), flush=True)
    expected = rows(home / "whole")
    words = [f"cluster={kind}", f"cluster.samplers={samplers}", f"cluster.judges={judges}"]
    words += ["cluster.restarts=5", f"cluster.heartbeat_s={HEARTBEAT_S}"]
    for name in parts.split(","):
        part, moments = ("sampler-0", 1) if name == "hang" else (name, len(MOMENTS))
        ended, told = run(home, name, words, part, moments), events(home / name)
        again = re.findall(rf"{part} (.*); it is started again", told)
        same = rows(home / name) == expected
        print(
            f"{name}: {ended}, {len(expected)} samples, same {same}, again {len(again)}: ", end=""
        )
        print(", ".join(sorted(set(again))), flush=True)


if __name__ == "__main__":
    typer.run(main)
