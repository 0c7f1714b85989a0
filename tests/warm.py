"""Processes of their own without the price of their imports: forked from one that has torch."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["burnish.cli.app", "burnish.training.build", "pytest"])


def start(
    module: str,
    words: Sequence[str],
    *,
    folder: Path | None = None,
    log: Path | str = os.devnull,
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """Like `python -m module words` in this folder, with all that it says in the log."""
    child = FORKS.Process(
        target=_live,
        args=(module, list(words), folder or Path.cwd(), log, dict(environment or os.environ)),
    )
    child.start()
    return child


def run(
    module: str,
    words: Sequence[str],
    *,
    log: Path | str,
    environment: Mapping[str, str],
    timeout: float,
) -> int:
    """Like `subprocess.run` of `python -m module words`: the exit code."""
    child = start(module, words, log=log, environment=environment)
    child.join(timeout)
    if child.exitcode is None:
        child.kill()
        raise subprocess.TimeoutExpired([module, *words], timeout)
    return child.exitcode


def _live(
    module: str, words: list[str], folder: Path, log: Path | str, environment: dict[str, str]
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)
