"""The benchmark of diffusion decoding: both ways write the same tokens, and figures are there."""

import importlib.util
import json
from pathlib import Path

from burnish.lm.diffusion.sampler import Decoding

FILE = Path(__file__).parents[2] / "lab" / "benchmarks" / "diffusion_decoding.py"


def loaded():
    spec = importlib.util.spec_from_file_location("diffusion_decoding", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_ways_write_the_same_tokens():
    found = loaded().measure("tiny", 3, 8, 10, Decoding(block=4, steps=2), 1, "float64")
    assert found["same_tokens"] == 1.0
    assert found["burnish_tokens_per_s"] > 0
    assert found["plain_tokens_per_s"] > 0


def test_rows_are_written(tmp_path, monkeypatch, capsys):
    file = tmp_path / "new" / "rows.json"
    words = ["--model", "tiny", "--rows", "2", "--prompt", "6", "--tokens", "4", "--block", "4"]
    words += ["--steps", "0", "2", "--repeats", "1", "--out", str(file)]
    monkeypatch.setattr("sys.argv", ["diffusion_decoding.py", *words])
    loaded().main()
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert json.loads(file.read_text()) == said
    assert [row["steps"] for row in said] == [4, 2]
