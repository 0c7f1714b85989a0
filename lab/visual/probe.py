"""Which feature maps tell colours, shapes, heights and letters? A linear probe of the frozen encoder.

    python -m lab.visual.probe                    # 20 minutes on one core

Every map of a picture, flattened, is read out by ridge regression: colour and shape of each occupied
cell of a 4 x 4 grid; value (rounded) and letter of each of four bars. Maps are put side by side by
adding their Gram matrices. Pixels are the baseline; `shuffled` has the pictures of the training side in
another order.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.models.visual.encoder import LITE0, Encoder, lite0_weights
from burnish.models.visual.processing_visual import MEAN, STD
from burnish.seeds import derive
from burnish.tasks.pictures import COLOURS, Picture
from burnish.tasks.scenes import LABELS, SHAPES, TOP, Chart, Charts, Scene, Scenes
from lab.visual.rows import pixels_of

RESULTS = Path(__file__).parent / "results"
READ: tuple[tuple[int, ...], ...] = (
    (0,),
    (32,),
    (16,),
    (8,),
    (4,),
    (16, 32),
    (8, 16, 32),
    (4, 8, 16, 32),
)
"""Strides that are read together; 0: pixels, each 4 x 4 averaged."""


class Question(NamedTuple):
    """One thing to read off: rows that have it, and their classes."""

    name: str
    rows: list[int]
    classes: list[int]
    count: int


def questions(pictures: Sequence[Picture]) -> list[Question]:
    """What a picture of either kind can be asked."""
    found: dict[tuple[str, int], Question] = {}

    def note(name: str, place: int, row: int, known: Sequence[Any], value: Any) -> None:
        one = found.setdefault((name, place), Question(name, [], [], len(known)))
        one.rows.append(row)
        one.classes.append(list(known).index(value))

    for row, picture in enumerate(pictures):
        if isinstance(picture, Scene):
            for thing in picture.things:
                cell = (thing.y - 1) * picture.grid + thing.x
                note("colour", cell, row, COLOURS, thing.colour)
                note("shape", cell, row, SHAPES, thing.shape)
        elif isinstance(picture, Chart):
            for place, (label, value) in enumerate(
                zip(picture.labels, picture.values, strict=True)
            ):
                note("letter", place, row, LABELS, label)
                note("value", place, row, range(1, TOP + 1), value)
    return list(found.values())


def grams(
    pictures: Sequence[Picture], encoder: Encoder, held: int, note: Callable[[str], None]
) -> dict[int, Tensor]:
    """Inner products of standardised, flattened maps, (N, N) by stride; mean and scale of the training side."""
    maps: dict[int, list[Tensor]] = {}
    for start in range(0, len(pictures), 16):
        images = np.stack([pixels_of(one) for one in pictures[start : start + 16]])
        pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).float() - MEAN) / STD
        found = {0: torch.nn.functional.avg_pool2d(pixels, 4), **encoder(pixels)}
        for stride in {s for some in READ for s in some}:
            maps.setdefault(stride, []).append(found[stride].flatten(1).half())
        note(f"{start + len(images)}/{len(pictures)} pictures")
    result = {}
    for stride, parts in maps.items():
        x = torch.cat(parts).float()
        train = x[:-held]
        x = (x - train.mean(0)) / (train.std(0) + 0.05 * train.std())
        result[stride] = x @ x.T / x.shape[1]
    return result


def accuracy(
    gram: Tensor, one: Question, held: int, order: Sequence[int] | None = None
) -> tuple[int, int]:
    """Held-out rows that ridge regression onto one-hot classes gets right, of how many."""
    size = gram.shape[0] - held
    rows, classes = torch.tensor(one.rows), torch.tensor(one.classes)
    is_train = rows < size
    train, test = rows[is_train], rows[~is_train]
    if not len(test) or not len(train):
        return 0, 0
    seen = train if order is None else torch.tensor(order)[train]
    target = torch.nn.functional.one_hot(classes[is_train], one.count).float()
    inner = gram[seen][:, seen]
    mean = target.mean(0)
    ridge = 0.01 * inner.diagonal().mean() * torch.eye(len(seen))
    weights = torch.linalg.solve(inner + ridge, target - mean)
    said = (gram[test][:, seen] @ weights + mean).argmax(1)
    return int((said == classes[~is_train]).sum()), len(test)


def probe(
    kind: str, train: int, held: int, encoder: Encoder, seed: int
) -> dict[str, dict[str, float]]:
    """Accuracy by what is asked and what is read."""
    config: Any = Scenes(most=8) if kind == "scenes" else Charts(forms=("bar",), least=4, most=4)
    rng = random.Random(derive("visual probe", kind, seed))
    pictures = [config.draw(rng) for _ in range(train + held)]
    found = grams(pictures, encoder, held, lambda text: print(f"{kind} {text}", file=sys.stderr))
    asked = questions(pictures)
    order = list(range(train))
    random.Random(derive("visual probe order", seed)).shuffle(order)
    figures: dict[str, dict[str, float]] = {}
    for strides in (*READ, "shuffled"):
        chosen = (8, 16, 32) if strides == "shuffled" else strides
        gram = torch.stack([found[s] for s in chosen]).sum(0)
        hits: dict[str, list[int]] = {}
        for one in asked:
            got = accuracy(gram, one, held, order if strides == "shuffled" else None)
            hits[one.name] = [a + b for a, b in zip(hits.get(one.name, [0, 0]), got, strict=True)]
        title = "pixels" if chosen == (0,) else " + ".join(map(str, chosen))
        title = "shuffled" if strides == "shuffled" else title
        for name, (right, count) in hits.items():
            figures.setdefault(title, {})[name] = right / count
    return figures


def main() -> None:
    """Run and write `results/probe.md`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pictures", type=int, default=1500)
    parser.add_argument("--held-out", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    encoder = Encoder(LITE0)
    encoder.load_state_dict(lite0_weights())
    figures = [
        probe(kind, given.pictures, given.held_out, encoder, given.seed)
        for kind in ("scenes", "charts")
    ]
    names = [name for one in figures for name in next(iter(one.values()))]
    lines = [
        "# What a linear probe reads off the encoder's maps\n",
        f"{given.pictures} training and {given.held_out} held-out pictures of each kind, seed "
        f"{given.seed}; EfficientNet-Lite0 at 224 pixels, maps by stride; share of held-out cells or bars "
        "that are read right.\n",
        f"| strides | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for title in figures[0]:
        cells = [f"{one[title][name]:.3f}" for one in figures for name in one[title]]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "probe.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
