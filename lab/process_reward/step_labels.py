"""Process reward models on real step labels: is the first wrong step found, and by what?

    python -m lab.process_reward.step_labels --data DATA --seeds 0 1 2 --jobs 3     # SmolLM2, on a GPU
    python -m lab.process_reward.step_labels --data DATA --cpu         # a trial with the tiny model
    python -m lab.process_reward.step_labels --table                   # the table again, from the CSV

DATA holds `bigbench_mistake.parquet` (1000 solutions of five BIG-Bench tasks by PaLM 2, 173 of them
right) and `mr_gsm8k.parquet` (434 wrong solutions of GSM8K). Prompts are split by their text: 70 %
train, 30 % test, the same for all arms and seeds. Arms:

labels          the published labels
shuffled        the same solutions; whether and where a solution is wrong is dealt anew in each task
start           the model and a fresh head, not trained
position        no model: how often a solution of the training part first went wrong at this step
position+task   the same for each task apart
length          the same by the length of the step instead of its place

F1 is ProcessBench's. Every half of the test solutions is judged by the threshold of the other half.
MR-GSM8K has no right solutions here: of it, the share of first wrong steps found.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.bench import calibrated_f1, halves, labels_of, solution_rows
from burnish.bench.loaders import load
from burnish.bench.statistics import grouped_estimate
from burnish.errors import UserError
from burnish.intervals import interval_text
from burnish.numbers import sigmoid
from burnish.records import Message
from burnish.rewards.models.pair_metrics import auc
from burnish.rewards.models.trained_model import (
    Asked,
    ProcessRewardModelConfig,
    ProcessRewardModelReward,
)
from burnish.seeds import derive
from lab.tables import mean_text, write_rows

RESULTS = Path(__file__).parent / "results"
SETS = ("bigbench_mistake", "mr_gsm8k")
SEEDS = (0, 1, 2)
TEST_SHARE = 0.3
BATCH, RATE, MAX_TOKENS, PASSES = 32, 5e-5, 2048, 3
MICRO_TOKENS = 32768
"""Of a pass, so that several runs fit on one device."""
LAST_PLACE = 12
"""Later steps are counted together: few solutions are longer."""
TRAINED = ("labels", "shuffled", "start")
COUNTED = ("position", "position+task", "length")

Row = dict[str, Any]


class Split(NamedTuple):
    """Solutions to train on, and those that no arm sees."""

    train: list[Row]
    test: list[Row]


def read_split(data: Path, limit: int = 0) -> Split:
    """Both files, split by the text of the prompt; of a trial the shortest solutions."""
    rows = []
    for name in SETS:
        found = solution_rows(load(name, data / f"{name}.parquet"))
        rows += [row | {"set": name} for row in found]
    if limit:
        rows = [row for row in rows if len(text_of(row)) < 700]
        rows = [row for name in SETS for row in [r for r in rows if r["set"] == name][:limit]]
    is_test = [
        derive("step labels", text_of(row, steps=False)) < TEST_SHARE * 2**63 for row in rows
    ]
    parted = list(zip(rows, is_test, strict=True))
    return Split([row for row, test in parted if not test], [row for row, test in parted if test])


def text_of(row: Row, *, steps: bool = True) -> str:
    """The prompt of a row, and its steps."""
    turns = [turn["content"] for turn in row["prompt"]]
    return "\n".join([*turns, *(row["steps"] if steps else ())])


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same solutions with the first wrong steps of others of their task, at the same share."""
    dealt: list[Row] = []
    rng = random.Random(seed)
    for subset in sorted({row["meta"]["subset"] for row in rows}):
        mine = [row for row in rows if row["meta"]["subset"] == subset]
        places = [
            None if row["first_wrong"] is None else row["first_wrong"] / len(row["steps"])
            for row in mine
        ]
        rng.shuffle(places)
        for row, place in zip(mine, places, strict=True):
            size = len(row["steps"])
            first = None if place is None else min(int(place * size), size - 1)
            dealt.append(row | {"first_wrong": first, "labels": labels_of(first, size)})
    return dealt


# --- arms without a model


def counted_scores(arm: str, split: Split) -> list[list[float]]:
    """Share of right steps among the training steps of the same kind, for each test step."""
    kind_of: dict[str, Callable[[Row, int], Hashable]] = {
        "position": lambda row, place: min(place, LAST_PLACE),
        "position+task": lambda row, place: (row["meta"]["subset"], min(place, LAST_PLACE)),
        "length": lambda row, place: int(2 * math.log2(len(row["steps"][place]) + 1)),
    }
    kind = kind_of[arm]
    seen: Counter[Hashable] = Counter()
    right: Counter[Hashable] = Counter()
    for row in split.train:
        for place, label in enumerate(row["labels"]):
            if label is not None:
                seen[kind(row, place)] += 1
                right[kind(row, place)] += label
    share = sum(right.values()) / sum(seen.values())
    # One step of the mean kind is added to each: a kind never seen is as good as any.
    return [
        [
            (right[kind(row, place)] + share) / (seen[kind(row, place)] + 1)
            for place in range(len(row["steps"]))
        ]
        for row in split.test
    ]


# --- arms with a model


def train(job: dict[str, Any], rows: Sequence[Row], work: Path) -> Path:
    """Train one arm and give the folder of its model."""
    import burnish

    kept = [{key: row[key] for key in ("prompt", "steps", "labels")} for row in rows]
    steps = job["steps"] or max(1, PASSES * len(kept) // BATCH)
    rate = 0.0 if job["arm"] == "start" else RATE
    run = burnish.train(
        "process_reward_model",
        model=job["model"],
        data=kept,
        train={
            "kind": "process_reward_model",
            "batch": BATCH,
            "max_tokens": MAX_TOKENS,
            "bad_solutions": "drop",
        },
        optimiser={
            "learning_rate": rate,
            "schedule": "cosine",
            "warmup_steps": max(1, steps // 20),
        },
        update={"micro_batch_tokens": MICRO_TOKENS},
        steps=1 if job["arm"] == "start" else steps,
        evaluation={"prompts": 0},
        checkpoint={"every": 0},
        held_out=0,
        seed=job["seed"],
        runs=work / job["name"],
        show=False,
    )
    return Path(run.folder)


def model_scores(folder: Path, rows: Sequence[Row]) -> list[list[float] | None]:
    """The probability of each step; None for a solution that the model cannot read whole."""
    scorer = ProcessRewardModelReward(ProcessRewardModelConfig(path=str(folder), name="prm"))
    asked = [
        Asked(
            tuple(Message(turn["role"], turn["content"]) for turn in row["prompt"]),
            tuple(row["steps"]),
        )
        for row in rows
    ]
    said = scorer.scores(asked)
    return [None if isinstance(one, int) else [sigmoid(score) for score in one] for one in said]


# --- figures


def figures_of(rows: Sequence[Row], scores: Sequence[Sequence[float] | None]) -> dict[str, Any]:
    """All figures of one arm on the test solutions."""
    found: dict[str, Any] = {}
    for name in SETS:
        mine = [
            (row, given)
            for row, given in zip(rows, scores, strict=True)
            if row["set"] == name and given is not None
        ]
        if mine:
            found |= {f"{name}_{key}": value for key, value in _of_set(mine).items()}
        found[f"{name}_unread"] = sum(row["set"] == name for row in rows) - len(mine)
    return found


def _of_set(mine: Sequence[tuple[Row, Sequence[float]]]) -> dict[str, Any]:
    prompts = [text_of(row, steps=False) for row, _ in mine]
    steps = [
        (value, label, prompt)
        for (row, given), prompt in zip(mine, prompts, strict=True)
        for value, label in zip(given, row["labels"], strict=True)
        if label is not None
    ]
    first = calibrated_f1(
        [given for _, given in mine],
        [row["first_wrong"] for row, _ in mine],
        halves(prompts),
    )
    values, labels, owners = zip(*steps, strict=True)
    exact = grouped_estimate(
        [float((value > 0.5) == bool(label)) for value, label, _ in steps], owners
    )
    found = {"f1": first.f1, "wrong": first.wrong, "right": first.right, "steps": exact}
    figures: dict[str, Any] = {"solutions": len(mine), "auc": auc(values, labels)}
    for name, estimate in found.items():
        figures[name] = None if estimate is None else estimate.value
        figures[f"{name}_text"] = (
            "" if estimate is None else interval_text(*estimate[:3], estimate.size)
        )
    return figures


# --- jobs


def run_job(job: dict[str, Any], work: Path) -> None:
    """Measure one arm; a finished job is not repeated."""
    out = work / f"{job['name']}.json"
    if out.exists():
        return
    split = read_split(Path(job["data"]), job["limit"])
    scores: Sequence[Sequence[float] | None]
    if job["arm"] in COUNTED:
        scores = counted_scores(job["arm"], split)
    else:
        rows = split.train if job["arm"] != "shuffled" else shuffled(split.train, job["seed"])
        folder = train(job, rows, work)
        scores = model_scores(folder, split.test)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    sizes = {"train": len(split.train), "test": len(split.test)}
    figures = {**sizes, **figures_of(split.test, scores)}
    out.write_text(json.dumps({**job, "figures": figures}) + "\n")


def jobs_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every arm and seed; arms without a model know no seed."""
    base = {
        "data": str(options.data),
        "model": options.model,
        "steps": options.steps,
        "limit": options.limit,
    }
    found = [{"arm": arm, "seed": 0, "name": arm.replace("+", "-"), **base} for arm in COUNTED]
    for seed in options.seeds:
        found += [{"arm": arm, "seed": seed, "name": f"{arm}-{seed}", **base} for arm in TRAINED]
    return found


def run_all(options: argparse.Namespace) -> int:
    """Every job in processes beside each other, then the table."""
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(options)
    waiting, running, failed = list(jobs), dict[int, dict[str, Any]](), 0
    while waiting or running:
        while waiting and len(running) < options.jobs:
            job = waiting.pop(0)
            command = [sys.executable, "-m", "lab.process_reward.step_labels", "--job"]
            with (work / f"{job['name']}.log").open("w") as log:
                child = subprocess.Popen(
                    [*command, json.dumps(job), "--work", str(work)],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            running[child.pid] = job
        pid, status = os.wait()
        if pid in running:
            job = running.pop(pid)
            failed += status != 0
            said = "done" if status == 0 else "FAILED, see its log"
            print(f"{job['name']}: {said}", flush=True)
    finished = [work / f"{job['name']}.json" for job in jobs]
    rows = [json.loads(path.read_text()) for path in finished if path.exists()]
    if rows:
        write_csv(rows, options.results / "step_labels.csv")
        write_table(options.results)
        print((options.results / "step_labels.md").read_text())
    return int(failed > 0)


SHOWN = (
    ("bigbench_mistake", "f1", "F1"),
    ("bigbench_mistake", "wrong", "wrong found"),
    ("bigbench_mistake", "right", "right left alone"),
    ("bigbench_mistake", "auc", "AUC of steps"),
    ("bigbench_mistake", "steps", "steps judged rightly"),
    ("mr_gsm8k", "wrong", "MR-GSM8K: wrong found"),
    ("mr_gsm8k", "auc", "MR-GSM8K: AUC"),
)


def write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """One line an arm and seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = []
    for row in rows:
        model = "" if row["arm"] in COUNTED else Path(row["model"]).name
        flat.append({"arm": row["arm"], "seed": row["seed"], "model": model, **row["figures"]})
    write_rows(path, flat)


def write_table(results: Path) -> None:
    """Mean and standard deviation over seeds; of one run the 95 % interval over solutions."""
    with (results / "step_labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    big, mr = (first.get(f"{name}_solutions") or "0" for name in SETS)
    model = next((row["model"] for row in rows if row["model"]), "no model")
    lines = [
        "# Process reward models on real step labels",
        "",
        f"Model {model}; {first['train']} solutions to train on, {big} of BIG-Bench Mistake and {mr} "
        "of MR-GSM8K to test. In brackets how many seeds; ± is the standard deviation over them, "
        "and the interval of a single row is over test solutions. "
        "`python -m lab.process_reward.step_labels --data DATA --seeds 0 1 2 --jobs 3`",
        "",
        f"| arm | {' | '.join(title for _, _, title in SHOWN)} |",
        "|---" * (len(SHOWN) + 1) + "|",
    ]
    for arm in (*TRAINED, *COUNTED):
        mine = [row for row in rows if row["arm"] == arm]
        if mine:
            cells = [_cell(mine, f"{name}_{figure}") for name, figure, _ in SHOWN]
            lines.append(f"| {arm} ({len(mine)}) | {' | '.join(cells)} |")
    (results / "step_labels.md").write_text("\n".join(lines) + "\n")


def _cell(rows: Sequence[dict[str, str]], name: str) -> str:
    values = [float(row[name]) for row in rows if row.get(name)]
    interval = rows[0].get(f"{name}_text") if len(values) == 1 else ""
    return interval or mean_text(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the two Parquet files")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="runs beside each other")
    parser.add_argument("--work", type=Path, default=Path("runs/lab/process_reward"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--steps", type=int, default=0, help=f"0: {PASSES} passes over the data")
    parser.add_argument("--limit", type=int, default=0, help="short solutions of a set; 0: all")
    parser.add_argument("--cpu", action="store_true", help="a trial with the tiny model")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_job(json.loads(options.job), options.work)
        return 0
    if options.table:
        write_table(options.results)
        return 0
    if options.data is None:
        raise UserError("--data is missing; expected the folder with bigbench_mistake.parquet")
    if options.cpu:
        options.model, options.seeds, options.steps = "tiny", options.seeds[:1], 2
        options.limit, options.results = options.limit or 40, options.work / "trial"
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
