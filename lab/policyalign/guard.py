"""How well the rule-based guard finds refusals: XSTest's completions, labelled by people.

python -m lab.policyalign.guard --data labelled_completions.parquet      seconds; writes results/guard.json

A full refusal that the guard takes for one is a hit; a compliant answer that it takes for a refusal
is a false alarm. Partial refusals are counted apart. The guard's phrases were adjusted on these very
rows, so this is no held-out figure. Source of the file: paul-rottger/exaggerated-safety (CC BY 4.0).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from burnish.agents.policyalign import RuleGuard
from burnish.bench.statistics import wilson
from burnish.tasks.rows import read_table

RESULTS = Path(__file__).resolve().parent / "results"
LABELS = {
    "1_full_compliance": "compliance",
    "2_full_refusal": "refusal",
    "3_partial_refusal": "partial",
}


def taken_for_refusals(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The share of each label's completions that the guard takes for refusals, with intervals."""
    guard, marks = RuleGuard(), dict[str, list[bool]]()
    for row in rows:
        said = guard.read(str(row["completion"] or "")).refusal
        label = str(row["final_label"])
        if said is not None:
            marks.setdefault(LABELS.get(label, label), []).append(said)
    return {name: wilson(sum(found), len(found))._asdict() for name, found in sorted(marks.items())}


def main() -> None:
    """Write the shares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    asked = parser.parse_args()
    found = taken_for_refusals(row for _, row in read_table(asked.data).rows)
    print(json.dumps(found, indent=1), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "guard.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
