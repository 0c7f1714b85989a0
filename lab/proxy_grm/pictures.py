"""Proxy-GRM on pictures: does a judge that sees learn rubrics from which another one decides?

    python -m lab.proxy_grm.pictures --transfer                       # code alone, seconds
    python -m lab.proxy_grm.pictures --model fresh --jobs 2            # a small new model, CPU
    python -m lab.proxy_grm.pictures --model visual:smollm2 --jobs 4           # on a GPU
    python -m lab.proxy_grm.pictures --model visual:tiny --steps 2 --warm 2    # a trial on the CPU

Pairs of descriptions of a small picture (`recipes/proxy_grm/pictures.py`): which one is right depends on the
criterion that the reader needs, and on the picture. A small vision-language model is first shown rubrics of
the right form with a criterion at random, then trained by GRPO for its verdict alone, or for its verdict and
for what a proxy that looks at the picture makes of its rubric. Measured on held-out pairs: its own verdicts,
the proxy's verdicts from its rubric (transfer), leaks, and both again with a picture of another pair, which
a judge that looks must feel.

`fresh` is three random layers of 128 behind the frozen encoder, with a vocabulary of these pairs; its
projector and decoder learn all they know here, at rates of their own.

`--transfer` needs no model: accuracy of the proxy by code with the right rubric, with that of another pair
and with none, on the same pairs, with intervals; and with another pair's picture, as a control.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import anyio
from msgspec.structs import replace
from recipes.proxy_grm.pictures import NEEDS, follow, make

from burnish.bench.proxy_transfer import RubricCase, rubric_transfer
from burnish.bench.statistics import Estimate
from burnish.records import ImagePart, Message, Task
from burnish.rewards.judges.proxy_rubric import FunctionProxy
from burnish.store.blobs import shared_blobs
from lab.at_once import at_once

RESULTS = Path(__file__).parent / "results"
TASK = {"kind": "function", "path": "recipes.proxy_grm.pictures:make"}
PROXY = {"kind": "function", "path": "recipes.proxy_grm.pictures:follow"}
WATCHED: list[dict[str, Any]] = [
    {"kind": "proxy_rubric", "name": "right", "value": "accuracy", "weight": 0.0},
    {"kind": "proxy_rubric", "name": "transfer", "value": "proxy", "proxy": PROXY, "weight": 0.0},
    {"kind": "proxy_rubric", "name": "leak", "value": "leak", "weight": 0.0},
]
ARMS: dict[str, dict[str, Any]] = {
    "outcome only": {"weights": [1.0, 0.0, 0.5]},
    "verdict and proxy": {"proxy": PROXY},
}


FRESH = ("stages.0.optimiser.learning_rate=1e-3", "optimiser.learning_rate=2e-4")


def fresh_model(folder: Path) -> Path:
    """A small model that sees, from random weights; the same every time."""
    from burnish.lm.new_model import NewModel, new_model_folder, train_bpe
    from burnish.models.visual import new_visual

    if not (folder / "model").is_dir():
        rows = [make(random.Random(f"words {number}")) for number in range(500)]
        texts = [f"user\n{row['prompt']}\nassistant\n{row['demonstration']}" for row in rows]
        train_bpe(texts, 768, folder / "tokenizer")
        sizes = NewModel(layers=3, width=128, heads=4, tokenizer=str(folder / "tokenizer"))
        new_visual(
            folder / "model",
            new_model_folder(sizes, 0),
            encoder="efficientnet-lite0",
            image_size=96,
        )
    return folder / "model"


def cases(count: int, seed: int = 0) -> list[RubricCase]:
    """Pairs with the rubric that their reader needs."""
    found = []
    for number in range(count):
        row = make(random.Random(f"transfer {seed} {number}"))
        reader = row["question"].removeprefix("Which description suits ").rstrip("?")
        part = shared_blobs().add(row["images"][0])
        assert isinstance(part, ImagePart)
        found.append(
            RubricCase(
                row["question"],
                row["response_1"],
                row["response_2"],
                row["label"],
                f"<rubric>{NEEDS[reader]} 100%</rubric>",
                (part,),
            )
        )
    return found


async def transfer(count: int) -> dict[str, Estimate | None]:
    """The proxy by code under each rubric, and with the wrong picture."""
    given = cases(count)
    proxy = FunctionProxy(follow)
    (row,) = await rubric_transfer(given, [proxy])
    moved = [
        one._replace(pictures=other.pictures)
        for one, other in zip(given, [*given[1:], given[0]], strict=True)
    ]
    (blind,) = await rubric_transfer(moved, [proxy])
    return {
        "the pair's rubric": row.with_rubric,
        "another pair's rubric": row.shuffled,
        "no rubric": row.without,
        "the pair's rubric, another picture": blind.with_rubric,
    }


def write_transfer(found: dict[str, Estimate | None], count: int, out: Path) -> None:
    """The table of `--transfer`."""
    lines = [
        "# Proxy-GRM on pictures: the proxy by code",
        "",
        f"{count} pairs in both orders; share of right verdicts [95 %]. A proxy that names neither is wrong.",
        "",
        "| shown | right |",
        "|---|---|",
    ]
    for name, one in found.items():
        told = "-" if one is None else f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"
        lines.append(f"| {name} | {told} |")
    lines += ["", "Repeat: `python -m lab.proxy_grm.pictures --transfer`."]
    out.mkdir(parents=True, exist_ok=True)
    (out / "pictures_transfer.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def trained(model: str, name: str, arm: dict[str, Any], seed: int, given: Any) -> Path:
    """A run of one arm, continued where it was stopped; its last checkpoint."""
    import burnish

    rewards = [{"kind": "proxy_rubric", "name": "verified", **arm}, *WATCHED]
    run = burnish.train(
        "proxy_grm",
        f"stages.0.steps={given.warm}",
        f"model.device={given.device}",
        *given.set,
        model=model,
        rewards=rewards,
        steps=given.steps,
        seed=seed,
        name=f"{name.replace(' ', '_')}-{seed}",
        runs=given.runs,
        task=TASK,
    )
    return Path(run.folder)


def measured(model: Path, device: str, count: int) -> dict[str, float]:
    """Held-out verdicts and rubrics, with the picture and with that of another pair."""
    from burnish.lm.base import Sampling
    from lab.measure import answer, held_out, part

    tasks = held_out(TASK, count)
    greedy = Sampling(temperature=0.0, max_tokens=48)
    counted = [{**reward, "weight": 1.0} for reward in WATCHED]
    found: dict[str, float] = {}
    for name, shown in (("", tasks), ("other picture: ", other_pictures(tasks))):
        items = answer(model, device, shown, counted, greedy)
        found[f"{name}own accuracy"] = (1 + fmean(part(items, "right"))) / 2
        found[f"{name}transfer"] = (1 + fmean(part(items, "transfer"))) / 2
        found[f"{name}leaks"] = fmean(part(items, "leak"))
    return found


def other_pictures(tasks: Sequence[Task]) -> list[Task]:
    """Each task with the pictures of the next one."""

    def moved(task: Task, other: Task) -> Task:
        parts = [one for message in other.messages for one in message.media]
        messages = []
        for message in task.messages:
            content = message.content
            if not isinstance(content, str):
                texts = [one for one in content if not isinstance(one, ImagePart)]
                content = (*parts, *texts)
            messages.append(Message(message.role, content))
        return replace(task, messages=tuple(messages))

    return [moved(a, b) for a, b in zip(tasks, [*tasks[1:], *tasks[:1]], strict=True)]


def main() -> None:
    """The transfer by code, or training and measuring of all arms and seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--transfer", action="store_true")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--model", default="visual:smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--warm", type=int, default=300)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--runs", default="runs/proxy_grm_pictures")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.transfer:
        found = anyio.run(transfer, given.pairs)
        write_transfer(found, given.pairs, given.out)
        print((given.out / "pictures_transfer.md").read_text(encoding="utf-8"))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    if given.model == "fresh":
        given.set = [*FRESH, *given.set]
        given.model = str(fresh_model(Path(given.runs) / "fresh"))
    rows: list[dict[str, Any]] = []
    for row in at_once(run, [(name, s, given) for s in given.seeds for name in ARMS], given.jobs):
        rows = sorted([*rows, row], key=lambda one: (one["seed"], list(ARMS).index(one["arm"])))
        print(json.dumps(row), flush=True)
        (given.out / "pictures.json").write_text(json.dumps(rows, indent=1) + "\n")


def run(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train one arm and measure it."""
    folder = trained(given.model, name, ARMS[name], seed, given)
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return {"arm": name, "seed": seed, **measured(last, given.device, given.prompts)}


if __name__ == "__main__":
    main()
