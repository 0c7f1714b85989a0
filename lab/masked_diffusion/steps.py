"""What fewer decoding steps cost, for each order in which tokens are written.

    python -m lab.masked_diffusion.steps

A sorter is trained as the standard arm of `seeds` is, and writes the 12 digits of held-out rows with the
decoder of every masked diffusion model here (`DiffusionSampler`, greedy). A step is a forward pass of the
row; with 12 steps one token is kept a step, with 1 all at once. Blocks are filled from left to right, each
with its share of the steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from burnish.lm.base import Sampling
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.sampler import ORDERS, Decoding, DiffusionSampler
from burnish.lm.model_input import ModelInput
from burnish.lm.sampler.rows import Request
from burnish.lm.tokenizer import Tokenizer
from lab.at_once import at_once
from lab.masked_diffusion import sorting
from lab.masked_diffusion.seeds import ARMS, RESULTS, STEPS, append, generator, read, train
from lab.masked_diffusion.sorting import DIGITS, LENGTH, MASK, Rows, Sorter

COUNTS = (12, 6, 4, 3, 2, 1)
"""Decoding steps of an answer."""
HELD_OUT = 500


class Way(NamedTuple):
    """One way to write an answer."""

    order: str
    block: int = DIGITS

    def decoding(self, steps: int) -> Decoding | None:
        """With so many steps of the whole answer; None where blocks cannot share them evenly."""
        blocks = DIGITS // self.block
        if steps % blocks:
            return None
        return Decoding(block=self.block, steps=steps // blocks, order=cast(Any, self.order))


WAYS = {
    **{order: Way(order) for order in ORDERS},
    "confidence, blocks of 6": Way("confidence", 6),
    "confidence, blocks of 4": Way("confidence", 4),
    "left to right": Way("confidence", 1),
}


class AsDecoder:
    """A sorter as the sampler reads a model."""

    architecture = SimpleNamespace(mask=MASK, mask_id=MASK, prompt_sees="all")
    max_positions = LENGTH

    def __init__(self, sorter: Sorter) -> None:
        self.sorter, self.head_weight = sorter, sorter.head.weight

    def __call__(self, inputs: ModelInput) -> Tensor:
        return self.sorter.hidden(inputs.ids_RS)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        found: Tensor = self.sorter.head(hidden_XD)
        return found


class Digits:
    """A tokenizer without end tokens."""

    eos_ids = ()

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def exact_match(model: Sorter, held_out: Rows, decoding: Decoding) -> float:
    """Share of rows that are sorted right."""
    sampler = DiffusionSampler(
        cast(Decoder, AsDecoder(model)), cast(Tokenizer, Digits()), decoding=decoding
    )
    prompts, answers = held_out.ids_BL.split([DIGITS + 1, DIGITS], 1)
    requests = [
        Request(tuple(prompt), Sampling(max_tokens=DIGITS, temperature=0.0, seed=n))
        for n, prompt in enumerate(prompts.tolist())
    ]
    written = [list(found[0].token_ids) for found in sampler.generate(requests)]
    return sum(map(list.__eq__, written, answers.tolist())) / len(written)


def run(seed: int, steps: int, rows: int) -> list[dict[str, object]]:
    """One trained model under every way and number of steps."""
    torch.set_num_threads(1)
    model, _ = train(ARMS["standard"], seed, steps, 0)
    held_out = sorting.rows(rows, generator("held out"))
    return [
        {
            "way": name,
            "steps": count,
            "seed": seed,
            "trained": steps,
            "rows": rows,
            "exact_match": round(exact_match(model, held_out, decoding), 6),
        }
        for name, way in WAYS.items()
        for count in COUNTS
        if (decoding := way.decoding(count)) is not None
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Decoding steps against quality.")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=HELD_OUT, help="held-out rows")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, a thread each")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file, began = given.out / "steps.csv", time.monotonic()
    plan = (str(given.steps), str(given.rows))
    known = [row for row in read(file) if (row["trained"], row["rows"]) == plan]
    done = {int(row["seed"]) for row in known}
    missing = [(seed, given.steps, given.rows) for seed in range(given.seeds) if seed not in done]
    for found in at_once(run, missing, given.jobs):
        for row in found:
            append(file, row)
        print(f"seed {found[0]['seed']} after {time.monotonic() - began:.0f} s", flush=True)
    text = page([row for row in read(file) if (row["trained"], row["rows"]) == plan])
    (given.out / "steps.md").write_text(text)
    print(text)


def page(rows: list[dict[str, str]]) -> str:
    """The table in Markdown."""
    seeds = len({row["seed"] for row in rows})
    lines = [
        f"`python -m lab.masked_diffusion.steps`: exact match of {rows[0]['rows']} held-out rows by "
        f"decoding steps of the 12 digits, greedy; {seeds} sorters of {rows[0]['trained']} training steps. "
        "Mean [lowest, highest] over seeds.\n",
        "| order | " + " | ".join(map(str, COUNTS)) + " |",
        "|---" * (1 + len(COUNTS)) + "|",
    ]
    for name in WAYS:
        own = [[r for r in rows if (r["way"], r["steps"]) == (name, str(n))] for n in COUNTS]
        cells = [cell([float(row["exact_match"]) for row in some]) for some in own]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines) + "\n"


def cell(values: list[float]) -> str:
    """Mean and range; empty where nothing was measured."""
    if not values:
        return ""
    return f"{statistics.fmean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


if __name__ == "__main__":
    main()
