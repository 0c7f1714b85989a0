"""The judge benchmark runs whole: server, client, verdicts, memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "lab" / "benchmarks" / "judge_throughput.py"


def test_a_short_run_prints_time_and_memory():
    words = ["--calls", "60", "--concurrency", "12", "--delay-s", "0.02", "--keep"]
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    ratio = re.search(r"([\d.]+) x ideal", found.stdout)
    assert ratio is not None
    # No bound above: what a busy machine takes is no finding.
    assert float(ratio[1]) >= 1.0
    assert "memory" in found.stdout
