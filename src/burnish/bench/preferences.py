"""Preference sets as pairs to train on: any benchmark with a choice, for `dpo` and `reward_model`.

    rows = preference_rows(load("alpaca_pairs", Path("data/alpaca_pairs/train.parquet")))
    write_jsonl(rows, "pairs.jsonl")            # or burnish.train("reward_model", data=rows)

A row has `prompt` (chat messages), `chosen`, `rejected`, `tie` and `meta`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from burnish.arguments import as_list, refused
from burnish.bench.items import Item


def preference_rows(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Every pair of a better and a worse response of each item; ties as one row marked `tie`.

    Items without a label, where people do not agree, are left out.
    """
    found = as_list("items", items)
    for item in found:
        if not isinstance(item, Item):
            raise refused("items", item, "items of a benchmark, as its loader gives them")
    return [row for item in found for row in _rows(item)]


def _rows(item: Item) -> Iterator[dict[str, Any]]:
    if not item.best or len(item.responses) < 2:
        return
    meta = {"id": item.id, "subset": item.subset, **item.info}
    base = {"prompt": [msgspec.to_builtins(one) for one in item.messages], "meta": meta}
    texts = [response.text for response in item.responses]
    if len(item.best) == len(texts):
        yield {**base, "chosen": texts[0], "rejected": texts[1], "tie": True}
        return
    worse = [place for place in range(len(texts)) if place not in item.best]
    for better in item.best:
        for other in worse:
            yield {**base, "chosen": texts[better], "rejected": texts[other], "tie": False}
