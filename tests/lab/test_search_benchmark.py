"""The benchmark of search: its measure by hand, and a small run of every engine that is there."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def search():
    spec = importlib.util.spec_from_file_location(
        "search_benchmark", ROOT / "lab/benchmarks/search.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ndcg_by_hand(search):
    gains = {"a": 3.0, "b": 1.0}
    assert search.ndcg(["a", "b"], gains) == 1.0
    assert search.ndcg(["x", "a"], gains) == pytest.approx(
        (3 / math.log2(3)) / (3 + 1 / math.log2(3))
    )
    assert search.ndcg([], gains) == 0.0
    assert search.ndcg(["x", "a"], gains, k=1) == 0.0


def test_the_engines_find_the_same_passage(search, tmp_path):
    file, queries = tmp_path / "p.jsonl", tmp_path / "q.json"
    rows = [{"id": str(n), "text": f"word{n} and some others here"} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries.write_text(json.dumps(["word7 others"] * 3))
    for engine in ("burnish", "bm25s"):
        for step in ("build", "query"):
            command = [
                sys.executable, str(ROOT / "lab/benchmarks/search.py"), "child", engine, step,
            ]  # fmt: skip
            command += [str(file), str(queries), str(tmp_path / engine)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout.splitlines()[-1])
        assert [found[0] for found in told["found"]] == [7, 7, 7]
