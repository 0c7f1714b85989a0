"""`burnish doctor`: what is there, what is not and how to get it, and what is broken."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from burnish.bench import doctor
from burnish.bench.doctor import EXTRAS, State, examine
from burnish.tools.sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[2]
NOT_FOR_USERS = {"all", "dev", "bench"}
BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "peft"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Block())
from burnish.cli.entry import run
sys.exit(run(["doctor", "--json"]))
"""


def test_everything_is_looked_at(typed, tmp_path):
    done = typed("doctor", "--json", "--runs", tmp_path)
    assert done.code == 0
    found = {row["name"]: row for row in map(json.loads, done.out.splitlines())}
    assert {"python", "torch", "precision", "memory", "runs", "cache"} <= found.keys()
    assert found["precision"]["data"]["chosen"] in ("float32", "bfloat16")
    assert found["precision"]["data"]["tflops"]["float32"] > 0
    assert found["sandbox"]["data"]["strength"] == Sandbox(allow_weak=True).probe().strength
    assert found["memory"]["data"]["free_bytes"] > 0
    assert all(row["remedy"] for row in found.values() if row["state"] != "ok")
    assert not any(row["remedy"] for row in found.values() if row["state"] == "ok")


def test_every_extra_of_the_package_is_known():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - NOT_FOR_USERS


def test_without_torch_the_rest_is_still_examined():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert found["torch"]["state"] == "gap"
    assert found["torch"]["remedy"] == "pip install 'burnish[torch]'"
    assert found["extra lora"]["remedy"] == "pip install 'burnish[lora]'"


def test_a_torch_that_cannot_be_imported_is_broken(monkeypatch, typed, tmp_path):
    real = importlib.import_module

    def broken(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise OSError("libtorch.so: cannot open shared object file")
        return real(name, *rest)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    (found,) = [c for c in examine(tmp_path) if c.state is State.BROKEN]
    assert found.name == "torch"
    assert "libtorch.so" in found.found
    assert found.remedy


def test_a_folder_that_cannot_be_written_to_is_broken(typed, tmp_path):
    (tmp_path / "file").touch()
    done = typed("doctor", "--runs", tmp_path / "file" / "runs")
    assert done.code == 3
    assert "set run.folder to a folder that you may write to" in " ".join(done.out.split())
