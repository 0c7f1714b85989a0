"""What a Pre-Norm checkpoint loses when it gets a second stream.

    python -m lab.siamesenorm.convert test.parquet
    python -m lab.siamesenorm.convert test.parquet --out convert.json    # the numbers, too

The mean loss of SmolLM2-135M-Instruct in float32 over the first 128 tokens of eight texts, before and
after `from_prenorm` in its four forms, and how much its residual stream grows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch
import transformers

from burnish.lm.folder import find_folder
from burnish.models.norm_report import LayerWatch
from burnish.models.siamesenorm import from_prenorm

ROWS, LENGTH = 8, 128


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("texts", type=Path, help="a Parquet file with a column `text`")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    given = parser.parse_args(arguments)
    folder = find_folder("smollm2")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = pyarrow.parquet.read_table(given.texts, columns=["text"]).column("text").to_pylist()
    rows = [tokenizer(text)["input_ids"][:LENGTH] for text in texts]
    ids = torch.tensor([row for row in rows if len(row) == LENGTH][:ROWS])

    @torch.no_grad()
    def loss(of: torch.nn.Module) -> float:
        return float(of(ids, labels=ids, use_cache=False).loss)

    with LayerWatch(model) as watch:
        before = loss(model)
    growth = watch.report().growth
    print(f"before: loss {before:.4f}; the stream grows {growth:.0f}-fold")
    converted: list[dict[str, Any]] = []
    for warm in ("x_gain_zero", "none"):
        for normalized in (True, False):
            found = loss(from_prenorm(model, warm, normalized_input=normalized))
            converted.append({"warm": warm, "normalized_input": normalized, "loss": found})
            print(f"warm {warm}, normalized_input {normalized}: loss {found:.4f}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        numbers = {"before": before, "growth": growth, "rows": converted}
        given.out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
