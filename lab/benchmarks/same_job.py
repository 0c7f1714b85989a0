"""Lines and seconds of the same job in TRL and in burnish, as a script and as a notebook.

    python lab/benchmarks/same_job.py             # needs pip install -e '.[dev]'
    python lab/benchmarks/same_job.py --repeats 3 --json out.json

The job: GRPO on rows in memory with a function as the reward; 40 steps of 4 prompts x 8 answers x
16 tokens on a random model of 115 k parameters, in float32 on one CPU thread. The two programs are
same_job/with_burnish.py and same_job/with_trl.py, each as its own users would write it: burnish
also evaluates held-out rows before and after, stores every answer and saves a checkpoint; TRL
does not here. Lines are lines of code without blanks and comments. CPU seconds are those of the
process and its children, imports included.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

JOBS = Path(__file__).parent / "same_job"
RUN_NOTEBOOK = """
import sys, nbformat, nbclient
code = open(sys.argv[1]).read()
cells = [nbformat.v4.new_code_cell(part) for part in code.split("\\n\\n\\n")]
nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=900).execute()
"""


def count_lines(code: str) -> int:
    """Lines that hold code: no blanks, no comments."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return len({t.start[0] for t in tokens if t.type not in skipped and t.string})


def run_once(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of a command in an empty folder."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        before = os.times()
        done = subprocess.run(
            command, cwd=folder, env=os.environ | quiet, capture_output=True, text=True, check=False
        )
        after = os.times()
    if done.returncode:
        sys.exit(f"{' '.join(command[-2:])} failed:\n{done.stderr[-2000:]}")
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, after.elapsed - before.elapsed


def measure(program: str, form: str, repeats: int) -> dict[str, Any]:
    """Lines and median seconds of one program in one form."""
    path = JOBS / f"with_{program}.py"
    command = [sys.executable, str(path)]
    if form == "notebook":
        command = [sys.executable, "-c", RUN_NOTEBOOK, str(path)]
    runs = [run_once(command) for _ in range(repeats)]
    return {
        "program": program,
        "form": form,
        "lines": count_lines(path.read_text()),
        "cpu_s": statistics.median(cpu for cpu, _ in runs),
        "wall_s": statistics.median(wall for _, wall in runs),
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = [
        measure(program, form, asked.repeats)
        for form in ("script", "notebook")
        for program in ("burnish", "trl")
    ]
    table = Table("form", "program", "lines", "CPU s", "wall s", "TRL / burnish (CPU)")
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        for row in (ours, theirs):
            ratio = f"{theirs['cpu_s'] / ours['cpu_s']:.2f}" if row is theirs else ""
            seconds = f"{row['cpu_s']:.1f}", f"{row['wall_s']:.1f}"
            table.add_row(row["form"], row["program"], str(row["lines"]), *seconds, ratio)
    Console().print(table)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
