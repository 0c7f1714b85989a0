"""LLMBar with its recorded judges: one order, two orders, and evidence in tiers. No model is asked.

    python -m lab.skill_rm.llmbar

Each recorded judge answered three prompts in both orders. Two orders are read as Skill-RM does: +1,
-1 or 0 an order, and the sum decides. The tiers take the prompt with a reference and metrics as the
rubric and the plain one as opinion.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

from burnish.rewards.judges.skill_rm import Item, Tier, decide_pair
from lab.skill_rm.report import DATA, RESULTS, markdown, row, tally, write

PROMPTS = ("Vanilla", "CoT", "Metrics_Reference")
TIERS = {"Metrics_Reference": Tier.RUBRIC, "Vanilla": Tier.OPINION}


def load() -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
    """By judge and prompt: for each pair the two orders' sides, +1 where the label won."""
    import pyarrow.parquet as pq

    labels = {
        one["id"]: one["label"]
        for one in pq.read_table(DATA / "llmbar" / "test.parquet").to_pylist()
    }
    found: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(
        lambda: defaultdict(lambda: [0, 0])
    )
    path = DATA / "recorded_judges" / "llmbar.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    for one in rows:
        # `winner` names the output of the data set, whatever the order it was shown in.
        side = {str(labels[one["id"]]): 1, "None": 0}.get(str(one["winner"]), -1)
        found[one["judge"], one["prompt"]][one["id"]][int(one["swapped"])] = side
    return {key: {k: (v[0], v[1]) for k, v in pairs.items()} for key, pairs in found.items()}


def main() -> int:
    recorded = load()
    rows = []
    for judge in sorted({judge for judge, _ in recorded}):
        for prompt in PROMPTS:
            pairs = recorded[judge, prompt]
            rows.append(row(f"{judge}, {prompt}, one order", tally([a for a, _ in pairs.values()])))
            both = [a + b for a, b in pairs.values()]
            rows.append(row(f"{judge}, {prompt}, two orders", tally(both)))
        sides: list[float | None] = []
        for name in recorded[judge, "Vanilla"]:
            items = [
                Item(tier, prompt, side)
                for prompt, tier in TIERS.items()
                for side in recorded[judge, prompt][name]
            ]
            sides.append(decide_pair(items).side)
        rows.append(row(f"{judge}, tiers over two orders", tally(sides)))
    text = (
        "# LLMBar, 290 pairs: recorded judges under three ways of reading\n\n"
        "Two orders: the sum of +1, -1 and 0 decides, and orders that disagree leave a pair open. "
        "Tiers: the prompt with metrics and a reference decides where its orders agree, else the "
        f"plain prompt where its orders agree.\n\n{markdown(rows)}\n\n"
        "Repeat: `python -m lab.skill_rm.llmbar`.\n"
    )
    write("llmbar", text, rows, RESULTS)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
