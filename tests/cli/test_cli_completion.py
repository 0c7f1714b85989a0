"""What the shell completes, asked for as the script in the shell's start-up file does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Block())
from burnish.cli.entry import main
main()
"""


def complete(*words: str, cwd: Path | None = None) -> list[str]:
    """Completions of the last word, in a process that cannot import torch."""
    asked = {"_BURNISH_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
    environment = {**os.environ, **asked, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], env=environment, cwd=cwd, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_complete():
    assert complete("burnish", "rep") == ["report", "replay"]


def test_recipes_and_files_complete_first(tmp_path):
    (tmp_path / "mine.toml").touch()
    (tmp_path / "other.txt").touch()
    found = complete("burnish", "train", "", cwd=tmp_path)
    assert {"grpo", "sft", "dpo", "mine.toml"} <= set(found)
    assert "other.txt" not in found
    assert complete("burnish", "train", "dap") == ["dapo"]


def test_config_keys_complete_behind_the_recipe():
    assert complete("burnish", "try", "grpo", "optimiser.l") == ["optimiser.learning_rate="]
    assert "train.kind=" in complete("burnish", "train", "grpo", "train.")


@pytest.mark.parametrize("words", [("model.dtype=bf",), ("model.dtype", "=", "bf")])
def test_closed_values_complete_also_where_the_shell_splits_words(words):
    (found,) = complete("burnish", "train", "grpo", *words)
    assert found.removeprefix("model.dtype=") == "bfloat16"


def test_kinds_of_tables_complete():
    assert complete("burnish", "train", "grpo", "train.kind=dis") == ["train.kind=distil"]


@pytest.mark.parametrize("command", [("show",), ("compare", "grpo-abc"), ("audit",), ("view",)])
def test_runs_complete(command, runs):
    name, *rest = command
    assert complete("burnish", name, "--runs", str(runs), *rest, "grpo-x") == ["grpo-xyz"]


def test_a_folder_without_runs_completes_nothing(tmp_path):
    assert complete("burnish", "show", "--runs", str(tmp_path / "none"), "g") == []


def test_install_completion_writes_the_start_up_file(tmp_path):
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    command = [sys.executable, "-m", "burnish", "--install-completion", "bash"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "bash completion installed" in done.stdout
    assert (tmp_path / ".bashrc").is_file()
