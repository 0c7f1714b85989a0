"""What a Pre-Norm checkpoint loses when it gets a second stream.

    python -m studies.siamesenorm.convert test.parquet

The mean loss of SmolLM2-135M-Instruct in float32 over the first 128 tokens of eight texts, before and
after `from_prenorm` in its four forms, and how much its residual stream grows.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

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
    print(f"before: loss {before:.4f}; the stream grows {watch.report().growth:.0f}-fold")
    for warm in ("x_gain_zero", "none"):
        for normalized in (True, False):
            found = loss(from_prenorm(model, warm, normalized_input=normalized))
            print(f"warm {warm}, normalized_input {normalized}: loss {found:.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
