"""What a person waits for: help and reading commands are quick and need no torch."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "numpy", "matplotlib", "pandas"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])

sys.meta_path.insert(0, Block())
from burnish.cli.entry import run
sys.exit(run(sys.argv[1:]))
"""


def cpu_seconds(*arguments: str) -> float:
    """CPU time of a Python process, the best of three: other work on the machine only adds."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(3))


def without_torch(*words: object) -> subprocess.CompletedProcess[str]:
    """A command line in a process that cannot import torch and other heavy packages."""
    command = [sys.executable, "-c", BLOCK_TORCH, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_takes_at_most_0_4_cpu_seconds() -> None:
    assert cpu_seconds("-m", "burnish.cli", "--help") <= 0.4


def test_import_takes_at_most_0_15_cpu_seconds() -> None:
    assert cpu_seconds("-c", "import burnish") <= 0.15


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["methods"],
        ["runs", "--runs", "{runs}"],
        ["show", "grpo-abc", "--runs", "{runs}"],
        ["show", "grpo-abc", "--step", "1", "--runs", "{runs}"],
        ["show", "grpo-abc", "--sample", "1/train/0", "--runs", "{runs}"],
        ["export", "grpo-abc", "{file}", "--runs", "{runs}"],
        ["train", "tiny", "--print-config"],
    ],
)
def test_no_torch_is_needed(words: list[str], runs: Path, tmp_path: Path) -> None:
    done = without_torch(*(w.format(runs=runs, file=tmp_path / "x.jsonl") for w in words))
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout


def test_training_without_torch_says_what_to_install(tmp_path: Path) -> None:
    done = without_torch("train", "tiny", "--runs", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "burnish: training needs the package 'torch', which is not installed. "
        "Install it: pip install 'burnish[torch]'\n"
    )


def test_try_without_torch_shows_all_but_the_loss() -> None:
    done = without_torch("try", "tiny")
    assert done.returncode == 0
    assert "prompt 3" in done.stdout
    assert "pip install 'burnish[torch]'" in done.stdout


def test_no_colour_codes_in_a_pipe(runs: Path) -> None:
    command = [sys.executable, "-m", "burnish.cli", "show", str(runs / "grpo-abc"), "--step", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout


def test_a_reader_that_leaves_early_is_no_error(runs: Path) -> None:
    command = f"{sys.executable} -m burnish.cli show {runs / 'grpo-abc'} --best 99 --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
