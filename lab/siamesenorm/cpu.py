"""Topologies at rising learning rates: a byte-level language model on a CPU, in minutes a cell.

    python -m lab.siamesenorm.cpu train.parquet --held-out test.parquet
    python -m lab.siamesenorm.cpu train.parquet --held-out test.parquet --tied

12 layers of width 64 and 4 heads, 250 steps of 12 rows of 64 bytes, 20 steps of warm-up: Pre-Norm,
SiameseNorm, Post-Norm, and SiameseNorm without depth scaling, at rates 2e-3, 8e-3 and 2e-2, three
seeds each. Output weights are their own, as in the study on a GPU; with `--tied` they are the embedding's.
A cell is written when it is done, and a second start goes on behind the last one. The
table has the mean over seeds and the spread, never the best seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from burnish.models.norm_report import LayerWatch
from burnish.models.siamesenorm import SiameseNormForCausalLM, new_model
from burnish.seeds import Seeds

ARMS: dict[str, dict[str, Any]] = {
    "pre": {"norm_topology": "pre"},
    "siamese": {"norm_topology": "siamese_post_pre"},
    "post": {"norm_topology": "post"},
    "siamese, no depth scale": {"norm_topology": "siamese_post_pre", "depth_scale": "none"},
}
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.02,
}
ROWS, LENGTH, WARM_UP = 12, 64, 20


class Cell(NamedTuple):
    """One training; a loss that is no number is None, and the run counts as diverged."""

    arm: str
    rate: float
    seed: int
    loss: float | None
    largest_gradient: float | None
    """After the warm-up."""
    x_norm: float | None
    y_norm: float | None


def train(
    arm: str,
    rate: float,
    seed: int,
    text: torch.Tensor,
    held: torch.Tensor,
    steps: int,
    is_tied: bool = False,
) -> Cell:
    """Train one model and measure it on the held-out bytes."""
    model = new_model(seed=seed, tie_word_embeddings=is_tied, **SIZES, **ARMS[arm])
    draw = torch.Generator().manual_seed(Seeds(seed).for_("siamesenorm rows"))
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.1)
    largest = 0.0
    for step in range(steps):
        scale = min(1.0, (step + 1) / WARM_UP)
        scale *= 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * scale
        starts = torch.randint(0, len(text) - LENGTH, (ROWS,), generator=draw)
        ids = text[starts.unsqueeze(1) + torch.arange(LENGTH)]
        loss = model(ids, labels=ids, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not math.isfinite(norm):
            return Cell(arm, rate, seed, None, None, None, None)
        if step >= WARM_UP:
            largest = max(largest, norm)
        optimiser.step()
    found, x_norm, y_norm = measure(model, held)
    return Cell(arm, rate, seed, found if math.isfinite(found) else None, largest, x_norm, y_norm)


@torch.no_grad()
def measure(
    model: SiameseNormForCausalLM, held: torch.Tensor
) -> tuple[float, float | None, float | None]:
    """Mean loss of 128 held-out rows, and the last layer's stream norms."""
    places = torch.linspace(0, len(held) - LENGTH - 1, 128).long()
    ids = held[places.unsqueeze(1) + torch.arange(LENGTH)]
    with LayerWatch(model) as watch:
        loss = float(model(ids, labels=ids, use_cache=False).loss)
    last = watch.report().layers[-1]
    return loss, last.x_norm, last.y_norm


COLUMNS = {
    "loss": ("held-out loss, nats a byte", 3),
    "y_norm": ("length of the stream Y behind the last layer, or of the only stream", 1),
    "x_norm": ("length of the stream X behind the last layer", 1),
    "largest_gradient": ("largest norm of a gradient behind the warm-up", 1),
}
"""What the tables show of the cells, with their digits."""


def tables(cells: list[Cell]) -> str:
    """Mean and standard deviation over seeds of every arm and rate, as Markdown."""
    rates = sorted({cell.rate for cell in cells})
    lines = []
    for name, (words, digits) in COLUMNS.items():
        lines += [
            f"| {words} | " + " | ".join(f"rate {rate:g}" for rate in rates) + " |",
            "|---|" + "---|" * len(rates),
        ]
        for arm in ARMS:
            own = [[c for c in cells if c.arm == arm and c.rate == rate] for rate in rates]
            row = [_over_seeds([getattr(cell, name) for cell in some], digits) for some in own]
            lines.append(f"| {arm} | " + " | ".join(row) + " |")
        lines.append("")
    lost = sum(cell.loss is None for cell in cells)
    return "\n".join([*lines, f"{lost} of {len(cells)} trainings diverged."])


def _over_seeds(values: list[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.{digits}f}{spread} ({len(known)})"


def read(path: Path) -> torch.Tensor:
    """The bytes of a text, or of the column `text` of a Parquet file, as token ids."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        import pyarrow.parquet

        texts = pyarrow.parquet.read_table(path, columns=["text"]).column("text").to_pylist()
        content = "\n\n".join(texts).encode()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("text", type=Path)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("lab/siamesenorm/results"))
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 8e-3, 2e-2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--tied", action="store_true", help="output weights are the embedding's")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    text, held = read(given.text), read(given.held_out)
    given.out.mkdir(parents=True, exist_ok=True)
    kind = "cpu-tied" if given.tied else "cpu"
    file = given.out / f"{kind}-{given.steps}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    cells = [Cell(**json.loads(line)) for line in lines]
    done = {cell[:3] for cell in cells}
    wanted = [(a, r, s) for s in range(given.seeds) for r in given.rates for a in given.arms]
    for place, (arm, rate, seed) in enumerate(wanted, 1):
        if (arm, rate, seed) in done:
            continue
        cell = train(arm, rate, seed, text, held, given.steps, given.tied)
        cells.append(cell)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(cell._asdict()) + "\n")
        print(f"{place}/{len(wanted)} {arm}, rate {rate:g}, seed {seed}: loss {cell.loss}")
    (given.out / f"{kind}.md").write_text(tables(cells) + "\n", encoding="utf-8")
    print(tables(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
