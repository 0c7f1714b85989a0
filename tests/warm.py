"""Processes of their own without the price of their imports: forked from one that has torch."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["burnish.cli.app", "burnish.training.builder", "pytest"])
GRACE_S = 100.0
"""What is left of a group of processes when one of them has failed."""


class Ended(NamedTuple):
    """How a group of processes ended."""

    codes: list[int]
    said: list[str]

    @property
    def is_well(self) -> bool:
        return not any(self.codes)


def start(
    module: str,
    words: Sequence[str],
    *,
    folder: Path | None = None,
    log: Path | str = os.devnull,
    environment: Mapping[str, str] | None = None,
    seconds: Path | None = None,
) -> BaseProcess:
    """Like `python -m module words` in this folder, with all that it says in the log.

    A module whose name ends in `.py` is a file in that folder. The file `seconds` gets the processor's seconds that it and its processes took.
    """
    place = (folder or Path.cwd(), log, dict(environment or os.environ), seconds)
    child = FORKS.Process(target=_live, args=(module, list(words), *place))
    child.start()
    return child


def run(
    module: str,
    words: Sequence[str],
    *,
    folder: Path | None = None,
    log: Path | str = os.devnull,
    environment: Mapping[str, str] | None = None,
    timeout: float = 600,
    seconds: Path | None = None,
) -> int:
    """Like `subprocess.run` of `python -m module words`: the exit code."""
    child = start(module, words, folder=folder, log=log, environment=environment, seconds=seconds)
    child.join(timeout)
    if child.exitcode is None:
        child.kill()
        raise subprocess.TimeoutExpired([module, *words], timeout)
    return child.exitcode


def together(
    module: str,
    words: Sequence[str],
    folders: Sequence[Path],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> Ended:
    """Processes that train together, one in each folder, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **(environment or os.environ),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(len(folders)),
    }
    logs = [folder / f"said-{rank}.txt" for rank, folder in enumerate(folders)]
    children = [
        start(
            module,
            words,
            folder=folder,
            log=log,
            environment={**shared, **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))},
        )
        for rank, (folder, log) in enumerate(zip(folders, logs, strict=True))
    ]
    ends = time.monotonic() + timeout
    while any(child.exitcode is None for child in children):
        if time.monotonic() > ends:
            for child in children:
                child.kill()
        elif any(child.exitcode for child in children):
            ends = min(ends, time.monotonic() + GRACE_S)
        for child in children:
            child.join(0.05)
    codes = [child.exitcode for child in children]
    return Ended([code for code in codes if code is not None], [log.read_text() for log in logs])


def _live(
    module: str,
    words: list[str],
    folder: Path,
    log: Path | str,
    environment: dict[str, str],
    seconds: Path | None,
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    sys.argv[1:] = words
    try:
        if module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        if seconds is not None:
            used = os.times()
            seconds.write_text(str(sum(used[:4])))
