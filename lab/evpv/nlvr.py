"""Perfect facts of real scenes against spoilt ones: premises of NLVR checked against its object lists.

    python -m lab.evpv.nlvr --data DATA                      # 3 seeds, under a CPU minute

DATA holds `nlvr/test.parquet`: pictures of three boxes with the exact list of their objects. Premises are
counts by box, colour and shape; candidates, verifier and arms are those of `chartqa.py`. Nothing is read
from the picture: the list is an extractor without errors, which is then spoilt by dropping and flipping.
It says what gating is worth between perfect facts and none, and where misread facts make it worse than no
gate.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from burnish.rewards.judges.evpv import read_fact
from lab.evpv.chartqa import RATIOS, RESULTS, Chart, by_chart, interval, run
from lab.evpv.tables import Row, draw_curves, mean, write_table

COLOURS = {"#0099ff": "blue", "black": "black", "yellow": "yellow"}


def counts(objects: Sequence[Sequence[dict[str, object]]]) -> list[str]:
    """Premises of a scene: how many objects of a colour and shape each box holds.

    >>> counts([[{"color": "Black", "type": "square"}], []])
    ['box one black square = 1']
    """
    boxes = ("one", "two", "three")
    found: Counter[str] = Counter()
    for box, held in zip(boxes, objects, strict=False):
        for one in held:
            colour = COLOURS.get(str(one["color"]).lower(), str(one["color"]).lower())
            found[f"box {box} {colour} {one['type']}"] += 1
    return [f"{subject} = {count}" for subject, count in found.items()]


def load(file: Path, limit: int = 0) -> list[Chart]:
    """Scenes with at least two premises, each scene once."""
    import pyarrow.parquet as pq

    found: dict[str, Chart] = {}
    for row in pq.read_table(file).to_pylist():
        premises = counts(json.loads(row["structured_rep"]))
        facts = [read_fact(one, is_single=True) for one in premises]
        if len(premises) >= 2:
            chart = Chart(str(row["id"]), str(row["split"]), premises, facts, True, True)
            found.setdefault(row["structured_rep"], chart)
    return list(found.values())[: limit or None]


def main() -> None:
    """Run and write `results/nlvr.md` and its picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, default=0, help="scenes; 0: all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    scenes = load(given.data / "nlvr" / "test.parquet", given.limit)
    runs = []
    for seed in given.seeds:
        runs.append(run(scenes, seed))
        print(seed, {arm: round(mean(values), 3) for arm, values in runs[-1].items()}, flush=True)
    named = {arm: arm.replace("another chart", "another scene") for arm in runs[0]}
    del named["gated by OCR"]  # the same as perfect facts: nothing is read here
    rows = [Row(name, [mean(one[arm]) for one in runs]) for arm, name in named.items()]
    base = by_chart(runs, "ungated")
    lines = []
    for arm in (
        "gated by perfect facts",
        *(f"{how} {r:g}" for how in ("drop", "flip") for r in RATIOS),
    ):
        differences = [a - b for a, b in zip(by_chart(runs, arm), base, strict=True)]
        low, high = interval(differences)
        lines.append(f"- {arm} minus ungated: {mean(differences):+.3f} [{low:+.3f}, {high:+.3f}]")
    told = (
        f"{len(runs)} seeds, {len(scenes)} scenes; mean over scenes [lowest, highest seed]; facts are the "
        "object lists themselves, spoilt by a share"
    )
    note = "Differences on the same scenes, 95 % over scenes (bootstrap):\n\n" + "\n".join(lines)
    write_table(given.out / "nlvr.md", "NLVR with its object lists as facts", told, rows, note)
    start = [mean(one["gated by perfect facts"]) for one in runs]
    curves = {
        name: [(0.0, start), *((r, [mean(one[f"{name} {r:g}"]) for one in runs]) for r in RATIOS)]
        for name in ("drop", "flip")
    }
    level = {"ungated": mean([mean(one["ungated"]) for one in runs])}
    draw_curves(given.out / "nlvr.png", "share of the facts that are spoilt", curves, level)


if __name__ == "__main__":
    main()
