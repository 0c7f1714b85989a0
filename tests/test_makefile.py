"""`make run` says what it does before pip is silent for minutes."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_line_comes_before_each_installation(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    words = ["make", "--no-print-directory", "-n", "run"]
    plan = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = plan.stdout.splitlines()
    assert lines[0].startswith('echo "installing into .venv, torch first: a few minutes')
    package = next(place for place, line in enumerate(lines) if " -e " in line)
    assert lines[package - 1].startswith('echo "installing burnish and its packages')
