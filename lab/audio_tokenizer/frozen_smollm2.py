"""What a frozen SmolLM2 teaches an encoder of audio latents: spoken digits, linear probes, a CPU.

    python -m lab.audio_tokenizer.frozen_smollm2 ../shared/data/fsdd lab/audio_tokenizer/results

The tokenizer is norm+noise of `lab.audio_tokenizer.cpu`. A causal encoder of three layers over its frozen
latents stands before SmolLM2, which must write the digit's word and gets no gradient. Beside it the
untrained encoder, and the control: the same training on the words of other clips. Probes are linear, for
the digit on features pooled over time. A row is written when it is done; a second start goes on.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from burnish.lm.folder import find_folder
from burnish.lm.pretrained import load_pretrained
from burnish.lm.tokenizer import Tokenizer
from lab.audio_tokenizer.cpu import WORDS, accuracy, interval, table_of
from lab.audio_tokenizer.parts import (
    PROMPT,
    Texts,
    latents_of,
    pooled,
    read_items,
    train_encoder,
    train_tokenizer,
)

ARMS = ("untrained", "text by SmolLM2", "text of other clips")
SIZES = {"hidden_size": 128, "num_hidden_layers": 3, "codes": 256}


class Row(NamedTuple):
    """One probe."""

    arm: str
    seed: int
    digit: float
    speaker: float
    seconds: float
    """Of the training."""


def texts_of(digits: Sequence[int], tokenizer: Any) -> Texts:
    """Prompt, word and end of the text of each clip, as ids."""
    prompt = tokenizer.encode(PROMPT.rstrip())
    words = [
        [*prompt, *tokenizer.encode(f" {WORDS[digit]}"), min(tokenizer.eos_ids)] for digit in digits
    ]
    return Texts(words, len(prompt))


def probes(data: Path, folder: Path, seed: int, steps: int, done: Sequence[str]) -> list[Row]:
    """All arms of a seed that are not done."""
    model, _ = train_tokenizer(folder / f"{seed}", table_of(data, "norm+noise", seed, 350))
    sides = [read_items(data / f"{side}.parquet", 8000, "wav") for side in ("train", "test")]
    latents = [latents_of(model, items) for items in sides]
    smollm2 = find_folder("smollm2")
    lm = load_pretrained(transformers.AutoModelForCausalLM, smollm2, torch.float32)
    digits = [int(item.labels["digit"]) for item in sides[0]]
    others = random.Random(seed).sample(digits, len(digits))
    tokenizer = Tokenizer.from_folder(smollm2)
    found = []
    for arm in ARMS:
        if arm in done:
            continue
        began = time.perf_counter()
        encoder = train_encoder(
            latents[0],
            lm=None if arm == "untrained" else lm,
            texts=texts_of(digits if arm == "text by SmolLM2" else others, tokenizer),
            uses_codes=False,
            steps=0 if arm == "untrained" else steps,
            batch=8,
            seed=seed,
            **SIZES,
        )
        seconds = time.perf_counter() - began
        features = [pooled(encoder, side) for side in latents]
        values = [accuracy(features, sides, label) for label in ("digit", "speaker")]
        found.append(Row(arm, seed, *values, seconds))
        print(found[-1], flush=True)
    return found


def report(rows: Sequence[Row], steps: int) -> str:
    lines = [
        "# A frozen SmolLM2 over audio latents",
        "",
        "`python -m lab.audio_tokenizer.frozen_smollm2 ../shared/data/fsdd lab/audio_tokenizer/results`",
        "",
        f"Accuracy of a linear probe on 120 test clips (chance: 0.10 digit, 0.17 speaker) after {steps} steps of 8 "
        "clips. Means over seeds and 95 % t intervals.",
        "",
        "| encoder | digit | speaker | seeds |",
        "| --- | --- | --- | --- |",
    ]
    for arm in ARMS:
        own = [row for row in rows if row.arm == arm]
        if own:
            cells = [
                interval([getattr(row, label) for row in own]) for label in ("digit", "speaker")
            ]
            lines.append(f"| {arm} | {' | '.join(cells)} | {len(own)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with train.parquet and test.parquet")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--runs", type=Path, help="folder of the trainings, kept where given")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "frozen_smollm2.csv"
    rows: list[Row] = []
    if file.exists():
        with file.open(encoding="utf-8", newline="") as opened:
            kept = list(csv.reader(opened))[1:]
        rows = [Row(arm, int(seed), *map(float, rest)) for arm, seed, *rest in kept]
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(asked.seeds):
            done = [row.arm for row in rows if row.seed == seed]
            if set(done) != set(ARMS):
                rows += probes(asked.data, asked.runs or Path(scratch), seed, asked.steps, done)
            with file.open("w", encoding="utf-8", newline="") as opened:
                csv.writer(opened).writerows([Row._fields, *rows])
    table = report(rows, asked.steps)
    (asked.out / "frozen_smollm2.md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
