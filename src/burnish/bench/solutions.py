"""Worked solutions as rows to train on: any benchmark of first wrong steps.

    rows = solution_rows(load("bigbench_mistake", Path("data/bigbench_mistake.parquet")))
    write_jsonl(rows, "solutions.jsonl")     # or burnish.train("process_reward_model", data=rows)

A row has `prompt` (chat messages), `steps`, `labels` (1, 0 or null a step), `first_wrong` and `meta`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from burnish.arguments import as_list, refused
from burnish.bench.first_wrong import labels_of
from burnish.bench.items import Item


def solution_rows(items: Iterable[Item]) -> list[dict[str, Any]]:
    """A row for each solution; steps behind the first wrong one have no label.

    Items without steps, of other benchmarks, are refused.
    """
    found = as_list("items", items)
    for item in found:
        if not isinstance(item, Item) or not isinstance(item.hidden.get("steps"), list):
            raise refused(
                "items", item, "items of a benchmark of solutions, as its loader gives them"
            )
    return [_row(item) for item in found]


def _row(item: Item) -> dict[str, Any]:
    steps, first = item.hidden["steps"], item.hidden.get("first_wrong")
    return {
        "prompt": [msgspec.to_builtins(one) for one in item.messages],
        "steps": steps,
        "labels": labels_of(first, len(steps)),
        "first_wrong": first,
        "meta": {"id": item.id, "subset": item.subset, **item.info},
    }
