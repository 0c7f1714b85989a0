"""Four bottlenecks on spoken digits, and what can be read from their latents: a CPU, in an hour.

    python -m lab.audio_tokenizer.cpu ../shared/data/fsdd lab/audio_tokenizer/results

FSDD: 480 clips to train on, 120 to test, six speakers, 8 kHz. 32 channels, width 96, 25 latents a second,
350 steps of 16 crops. The table has the log-spectral distance of the test clips, also with noise of 0.3 and
0.6 standard deviations of each channel on their latents: means over three seeds with 95 % t intervals. A
fifth arm is norm+noise with an encoder that reads complex spectra instead of logarithms of magnitudes.

Then linear probes for digit and speaker on mean-pooled latents of norm+noise, and on a causal encoder of
three layers over them: untrained (the control), by RQ-MTP, by the text through a frozen language model of
characters, and by both. A row is written when it is done; a second start goes on behind the last one.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from burnish.bench.statistics import t_estimate
from burnish.models.audio_tokenizer import open_tokenizer
from burnish.models.audio_tokenizer.representation import linear_probe
from burnish.numbers import NUMBER_WORDS
from lab.audio_tokenizer.parts import (
    Item,
    Texts,
    latents_of,
    pooled,
    read_items,
    train_encoder,
    train_tokenizer,
)

ARMS: dict[str, dict[str, str]] = {
    **{one: {"bottleneck": one} for one in ("plain", "kl", "norm", "norm+noise")},
    "norm+noise, complex": {"bottleneck": "norm+noise", "features": "complex"},
}
"""The bottlenecks, and an encoder that reads complex spectra instead of magnitudes."""
NOISE = ("0", "0.3", "0.6")
WORDS = NUMBER_WORDS[:10]
ENCODERS: dict[str, dict[str, bool]] = {
    "z alone": {},
    "untrained": {},
    "RQ-MTP": {"codes": True},
    "text": {"text": True},
    "RQ-MTP + text": {"codes": True, "text": True},
}


class Row(NamedTuple):
    """One number."""

    part: str
    """distance or probe."""
    arm: str
    what: str
    """Noise in standard deviations; or the label that is probed."""
    seed: int
    value: float


def table_of(data: Path, arm: str, seed: int, steps: int) -> dict[str, Any]:
    """The config of one training."""
    return {
        "steps": steps,
        "run": {"seed": seed},
        "train": {
            "kind": "codec",
            "data": str(data / "train.parquet"),
            "held_out_data": str(data / "test.parquet"),
            "batch": 16,
            "seconds": 0.64,
            "sizes": {
                "sampling_rate": 8000,
                "n_fft": 160,
                "frame_hop": 40,
                "hidden_size": 96,
                "latent_size": 32,
                **ARMS[arm],
            },
        },
        "model": {"path": "new", "device": "cpu", "threads": 1},
        "optimiser": {
            "learning_rate": 1e-3,
            "warmup_steps": 20,
            "beta1": 0.8,
            "schedule": "cosine",
            "final_ratio": 0.05,
        },
        "evaluation": {"prompts": 120},
        "checkpoint": {"every": 100, "keep": 1},
    }


def distances(data: Path, folder: Path, arm: str, seed: int, steps: int) -> list[Row]:
    """Train one tokenizer; its distances."""
    place = folder / f"{arm}-{seed}"
    _, found = train_tokenizer(place, table_of(data, arm, seed, steps))
    values = {"0": found["score"][0], **{k[6:]: v for k, v in found["figures"].items()}}
    return [Row("distance", arm, noise, seed, values[noise]) for noise in NOISE]


# --- probes


def character_lm(seed: int, steps: int) -> tuple[Any, Texts]:
    """A small language model of the ten words, to be frozen, and its texts by digit."""
    letters = sorted(set("".join(WORDS)))
    number = {letter: place + 2 for place, letter in enumerate(letters)}
    ids = [[1, *(number[letter] for letter in word), 0] for word in WORDS]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": len(letters) + 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lm = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    optimiser = torch.optim.AdamW(lm.parameters(), lr=2e-3)
    rows = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(one) for one in ids], batch_first=True, padding_value=-100
    )
    for _ in range(steps):
        loss = lm(input_ids=rows.clamp(min=0), labels=rows).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    lm.zero_grad(set_to_none=True)
    return lm, Texts(ids, 1)


def probes(data: Path, folder: Path, seed: int, steps: int) -> list[Row]:
    """Accuracy of linear probes on each kind of feature."""
    from burnish.store.manifest import newest_weights

    model = open_tokenizer(newest_weights(folder / f"norm+noise-{seed}"))
    sides = [read_items(data / f"{side}.parquet", 8000, "wav") for side in ("train", "test")]
    latents = [latents_of(model, items) for items in sides]
    lm, words = character_lm(seed, steps)
    texts = Texts([words.ids[int(item.labels["digit"])] for item in sides[0]], words.prompt)
    found = []
    for arm, uses in ENCODERS.items():
        features = [torch.stack([one.mean(0) for one in side]) for side in latents]
        if arm != "z alone":
            encoder = train_encoder(
                latents[0],
                lm=lm if uses.get("text") else None,
                texts=texts,
                uses_codes=uses.get("codes", False),
                steps=3 * steps if uses else 0,
                seed=seed,
                hidden_size=128,
                num_hidden_layers=3,
                codes=256,
            )
            features = [pooled(encoder, side) for side in latents]
        for label in ("digit", "speaker"):
            found.append(Row("probe", arm, label, seed, accuracy(features, sides, label)))
    return found


def accuracy(features: Sequence[Any], sides: Sequence[Sequence[Item]], label: str) -> float:
    train, test = ([item.labels[label] for item in side] for side in sides)
    return linear_probe(features[0], train, features[1], test).accuracy


# --- tables


def report(rows: Sequence[Row]) -> str:
    """Means over seeds with intervals."""
    lines = [
        "# Spoken digits on a CPU",
        "",
        "`python -m lab.audio_tokenizer.cpu ../shared/data/fsdd lab/audio_tokenizer/results`",
        "",
        "Log-spectral distance of 120 test clips in dB, lower is better; noise on the latents in standard "
        "deviations of each channel. Means over seeds and 95 % t intervals.",
        "",
        "| arm | clean | + 0.3 sd | + 0.6 sd | seeds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for arm in ARMS:
        cells = [_mean(rows, "distance", arm, noise) for noise in NOISE]
        count = len({row.seed for row in rows if (row.part, row.arm) == ("distance", arm)})
        lines.append(f"| {arm} | {' | '.join(cells)} | {count} |")
    lines += [
        "",
        "Accuracy of a linear probe on features pooled over time, on 120 test clips (chance: 0.10 digit, "
        "0.17 speaker). Features: the latents of norm+noise, and encoders on them.",
        "",
        "| features | digit | speaker |",
        "| --- | --- | --- |",
    ]
    for arm in ENCODERS:
        cells = [_mean(rows, "probe", arm, label) for label in ("digit", "speaker")]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(rows: Sequence[Row], part: str, arm: str, what: str) -> str:
    return interval([row.value for row in rows if row[:3] == (part, arm, what)])


def interval(values: Sequence[float]) -> str:
    """The mean over seeds with its 95 % t interval."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "-"
    found = t_estimate(values)
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def read_rows(file: Path) -> list[Row]:
    """The rows of earlier starts; a line that was cut off is left out."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as opened:
        lines = [line for line in csv.reader(opened) if len(line) == len(Row._fields)][1:]
    return [Row(part, arm, what, int(seed), float(value)) for part, arm, what, seed, value in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with train.parquet and test.parquet")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--runs", type=Path, help="folder of the trainings, kept where given")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "cpu.csv"
    rows = read_rows(file)
    done = {(row.part, row.arm if row.part == "distance" else "", row.seed) for row in rows}
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.runs or Path(scratch)
        for seed in range(asked.seeds):
            for arm in ARMS:
                if ("distance", arm, seed) not in done:
                    rows += distances(asked.data, folder, arm, seed, asked.steps)
                    _write(asked.out, rows)
            if ("probe", "", seed) not in done and (folder / f"norm+noise-{seed}").is_dir():
                rows += probes(asked.data, folder, seed, asked.steps)
                _write(asked.out, rows)
    print(report(rows))


def _write(out: Path, rows: Sequence[Row]) -> None:
    with (out / "cpu.csv").open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([Row._fields, *rows])
    (out / "cpu.md").write_text(report(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
