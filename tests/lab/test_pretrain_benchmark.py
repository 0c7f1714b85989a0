"""The benchmark of pre-training runs to its end, and both loops take the same steps."""

import json
from pathlib import Path

import warm

ROOT = Path(__file__).parents[2]


def test_both_loops_take_the_same_steps(tmp_path):
    sizes = {"layers": 2, "width": 32, "heads": 2, "sequence": 32, "batch": 4, "vocabulary": 0}
    words = [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
    words += ["--device", "cpu", "--steps", "3", "--documents", "20", "--plain-eager"]
    words += ["--rows", "peak", "plain", "burnish", "--out", str(tmp_path / "out.json")]
    log = tmp_path / "said.txt"
    code = warm.run(
        str(ROOT / "lab" / "benchmarks" / "pretrain.py"), words, folder=tmp_path, log=log
    )
    said = log.read_text()
    assert code == 0, said[-2000:]
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    plain, ours = rows["plain"]["losses"], rows["burnish"]["losses"]
    assert len(plain) == len(ours) == 7
    assert max(abs(a - b) for a, b in zip(plain, ours, strict=True)) < 1e-4
    assert ours[-1] < ours[0]
    assert "tokens/s" in said
    assert "failed" not in said
