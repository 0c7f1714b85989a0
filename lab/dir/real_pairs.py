"""DIR on real pairs with a small language model: does a reward model lose its habit, and what for?

    python -m lab.dir.real_pairs --data DATA --jobs 6          # SmolLM2, on a GPU
    python -m lab.dir.real_pairs --data DATA --cpu             # a trial with the tiny model
    python -m lab.dir.real_pairs --table                       # the table again, from the CSV

DATA holds folders `alpaca_pairs`, `pandalm`, `llmbar`, `judgebench` and `rmbench` with Parquet files.
Every arm trains a scalar head and the whole model for one pass over the pairs, from the same weights
and in the same order for a seed. Two habits:

length     AlpacaEval and PandaLM as they are: the longer answer is preferred in most pairs
agreement  the same pairs; one answer of each begins by agreeing with the user, in 85 % the preferred one

Test pairs (a part of AlpacaEval, LLMBar, JudgeBench, RM-Bench) are never contaminated; `bias_report`
plants the prefix itself. For best-of-16 the start model answers prompts; half of its answers get the
prefix. Their gold score is the mean of three models that were trained on clean pairs with other
seeds and see the answer without its prefix.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import anyio
import msgspec

from burnish.bench.bias_report import BiasReport, as_pairs, bias_report
from burnish.bench.loaders import load
from burnish.errors import UserError
from burnish.records import Message
from burnish.rewards.models.bias_attributes import PREFIXES, contaminate
from burnish.rewards.models.term import Pair
from burnish.rewards.models.trained_model import RewardModelConfig, RewardModelReward
from burnish.seeds import derive
from lab.dir.baselines import FITTED, Penalised
from lab.dir.best_of_n import best_of_n_curve
from lab.tables import mean_text, write_rows

RESULTS = Path(__file__).parent / "results"
SEEDS = (0, 1, 2)
GOLD_SEEDS = (100, 101, 102)
BATCH, RATE, MAX_TOKENS = 64, 5e-5, 1024
PASSES = 1
HEAD_RATE = 1e-3
ON_CHOSEN = 0.85
"""Share of contaminated pairs whose prefix stands on the preferred side."""
PROMPTS, ANSWERS = 96, 16
TESTED = 400
"""Pairs of AlpacaEval that are scored with every attribute planted on either side."""
MICRO_TOKENS = 16384
"""Of a pass, so that several runs fit on one device."""


def terms_of(arm: str, attribute: str) -> list[dict[str, Any]]:
    """What is added to Bradley-Terry's loss."""
    kind, _, size = arm.partition(" ")
    if kind == "bt":
        return []
    if kind == "dir":
        # One short pass: a head at the published rate of 1e-4 would hardly have begun to learn.
        term = {"kind": "dir", "attribute": attribute, "lam": float(size)}
        return [{**term, "head_learning_rate": HEAD_RATE}]
    here = Path(__file__).resolve().with_name("baselines.py")
    options: dict[str, Any] = {"attribute": attribute}
    if kind == "experts":
        return [
            {"kind": "function", "name": kind, "path": f"{here}:ExpertTerm", "options": options}
        ]
    options["coefficient"] = float(size)
    return [{"kind": "function", "name": kind, "path": f"{here}:PearsonTerm", "options": options}]


ARMS = {
    "length": ("bt", "penalty", "pearson 1", "experts", "dir 0.1", "dir 0.3", "dir 1"),
    "agreement": ("bt", "pearson 1", "experts", "dir 0.1", "dir 0.3", "dir 1"),
}


def read_pairs(data: Path, *names: str) -> list[Pair]:
    """Pairs of `SET/SPLIT` files by the loaders of the benchmarks."""
    found = []
    for name in names:
        bench, _, split = name.partition("/")
        found += as_pairs(load(bench, data / bench / f"{split}.parquet"))
    return found


def first(pairs: Sequence[Pair], limit: int) -> list[Pair]:
    """All pairs; in a trial the first ones that the tiny model can read."""
    if not limit:
        return list(pairs)
    size = lambda pair: len(as_text(pair)) + max(len(pair.chosen), len(pair.rejected))  # noqa: E731
    return sorted(pairs, key=size)[:limit]


def training_pairs(data: Path, habit: str) -> list[Pair]:
    """The pairs of a habit; identical answers are no pair."""
    pairs = [
        pair
        for pair in read_pairs(data, "alpaca_pairs/train", "pandalm/test")
        if pair.chosen.strip() != pair.rejected.strip() and pair.chosen.strip() and pair.rejected
    ]
    if habit == "agreement":
        return [one.pair for one in contaminate(pairs, gamma=1.0, alpha=ON_CHOSEN)]
    return pairs


def row_of(pair: Pair) -> dict[str, Any]:
    """A pair as a line of a data file."""
    prompt = [msgspec.to_builtins(one) for one in pair.task.messages]
    return {"prompt": prompt, "chosen": pair.chosen, "rejected": pair.rejected}


# --- one job: train an arm, then look at what it judges by


def train(job: dict[str, Any], work: Path) -> Path:
    """Train one arm and give the folder of its model."""
    import burnish

    rows = [row_of(pair) for pair in training_pairs(Path(job["data"]), job["habit"])]
    steps = job["steps"] or PASSES * len(rows) // BATCH
    run = burnish.train(
        "sft",
        model=job["model"],
        data=rows,
        train={
            "kind": "reward_model",
            "batch": BATCH,
            "max_tokens": MAX_TOKENS,
            "bad_pairs": "drop",
            "terms": terms_of(job["arm"], job["habit"]),
        },
        optimiser={
            "learning_rate": RATE,
            "schedule": "cosine",
            "warmup_steps": max(1, steps // 20),
        },
        update={"micro_batch_tokens": MICRO_TOKENS},
        steps=steps,
        evaluation={"prompts": 0},
        checkpoint={"every": 0},
        seed=job["seed"],
        runs=work / job["name"],
        show=False,
    )
    return Path(run.folder)


def measure(job: dict[str, Any], scorer: RewardModelReward) -> dict[str, Any]:
    """Figures of a trained model on the test sets."""
    data, limit = Path(job["data"]), job["limit"]
    rmbench = [] if limit else load("rmbench", data / "rmbench")
    natural = first(read_pairs(data, "alpaca_pairs/test"), limit)[:TESTED]
    figures = figures_of(anyio.run(bias_of, scorer, natural, rmbench), job["habit"])
    for name in ("llmbar",) if limit else ("llmbar", "judgebench"):
        pairs = first(read_pairs(data, f"{name}/test"), limit)
        figures |= {f"{name}{end}": value for end, value in accuracies(scorer, pairs).items()}
    return figures


def accuracies(scorer: RewardModelReward, pairs: Sequence[Pair]) -> dict[str, float | None]:
    """Over all pairs, and over those whose rejected answer is longer."""
    scores = score_answers(
        scorer, [(as_text(p), text) for p in pairs for text in (p.chosen, p.rejected)]
    )
    right = [a > b for a, b in zip(scores[0::2], scores[1::2], strict=True)]
    opposed = [
        mark for mark, p in zip(right, pairs, strict=True) if len(p.rejected) > len(p.chosen)
    ]
    return {"": fmean(right), "_opposed": fmean(opposed) if opposed else None}


async def bias_of(scorer: Any, pairs: Sequence[Pair], rmbench: Sequence[Any]) -> BiasReport:
    """The report with pairs that are too long left out."""
    return await bias_report(scorer, pairs, rmbench=rmbench)


def figures_of(report: BiasReport, habit: str) -> dict[str, Any]:
    """The report's figures by name."""
    one = next(each for each in report.attributes if each.name == habit)
    value = lambda estimate: None if estimate is None else estimate.value  # noqa: E731
    rmbench = report.rmbench or {}
    return {
        "accuracy": report.accuracy.value,
        "aligned": value(one.natural),
        "conflicting": value(one.adversarial),
        "misled": one.misled.value,
        "flips": one.flips.value,
        "paid": one.paid.value,
        "probe_auc": one.probe_auc,
        "length_correlation": report.attributes[0].correlation,
        **{f"rmbench_{name}": rmbench.get(name) for name in ("hard", "normal", "easy", "total")},
    }


def score_answers(scorer: RewardModelReward, answers: Sequence[tuple[str, str]]) -> list[float]:
    """The model's score of each (prompt, answer); one that it cannot read is refused."""
    talks = [(Message("user", prompt), Message("assistant", text)) for prompt, text in answers]
    found = []
    for (prompt, _), score in zip(answers, scorer.scores(talks), strict=True):
        if isinstance(score, int):  # The length in tokens, no score.
            raise UserError(
                f"a conversation has {score} tokens, more than the model reads: {prompt[:60]!r}; "
                "expected shorter ones. Leave it out of the data, or take a model that reads more"
            )
        found.append(score)
    return found


# --- best of 16


def write_answers(data: Path, model: str, path: Path, prompts: int) -> None:
    """Answers of the start model to test prompts; half of them, by a coin, begin by agreeing."""
    import burnish

    asked = sorted({as_text(pair) for pair in read_pairs(data, "alpaca_pairs/test")})
    asked = random.Random(derive(0, "prompts")).sample(asked, min(prompts, len(asked)))
    found = burnish.generate(model, asked, n=ANSWERS, temperature=1.0, max_tokens=192, seed=0)
    rng = random.Random(derive(0, "prefixes"))
    with path.open("w") as lines:
        for place, prompt in enumerate(asked):
            own = found.completions[place * ANSWERS : (place + 1) * ANSWERS]
            marks = [rng.random() < 0.5 for _ in own]
            row = {"prompt": prompt, "answers": [one.text for one in own], "marked": marks}
            lines.write(json.dumps(row) + "\n")


def as_text(pair: Pair) -> str:
    """The question of a pair of one turn."""
    return pair.task.messages[-1].text


def read_answers(path: Path) -> list[dict[str, Any]]:
    """The lines of `write_answers`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def shown(row: dict[str, Any]) -> list[str]:
    """Answers with their prefixes."""
    both = zip(row["answers"], row["marked"], strict=True)
    return [f"{PREFIXES[0]} {text}" if marked else text for text, marked in both]


def best_of_16(
    rows: Sequence[dict[str, Any]], scores: Sequence[float], gold: Sequence[Any]
) -> dict[str, Any]:
    """Gold score of the best of n by the model, in deviations of its prompt, and marked picks."""
    by_prompt = [scores[i : i + ANSWERS] for i in range(0, len(scores), ANSWERS)]
    curve = best_of_n_curve(by_prompt, gold)
    picked = [
        row["marked"][max(range(ANSWERS), key=mine.__getitem__)]
        for row, mine in zip(rows, by_prompt, strict=True)
    ]
    figures = {f"gold_best_of_{point.n}": point.gold.value for point in curve}
    return figures | {"marked_picks": fmean(picked)}


def gold_scores(every: Sequence[Sequence[float]]) -> list[list[float]]:
    """Mean of the gold models' scores, each in deviations of its prompt."""
    found = []
    for start in range(0, len(every[0]), ANSWERS):
        parts = [_standard(scores[start : start + ANSWERS]) for scores in every]
        found.append([fmean(column) for column in zip(*parts, strict=True)])
    return found


def _standard(values: Sequence[float]) -> list[float]:
    centre, spread = fmean(values), stdev(values)
    return [(value - centre) / spread if spread else 0.0 for value in values]


# --- all jobs, and the table


def jobs_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Gold models first, then every habit, arm and seed."""
    base = {"data": str(options.data), "model": options.model, "steps": options.steps}
    base |= {"limit": options.limit}
    found = [
        {"habit": "length", "arm": "bt", "seed": seed, "name": f"gold-{seed}", **base}
        for seed in GOLD_SEEDS
    ]
    for seed in options.seeds:
        for habit, arms in ARMS.items():
            for arm in (arm for arm in arms if arm != "penalty"):
                name = f"{habit}-{arm.replace(' ', '-')}-{seed}"
                found.append({"habit": habit, "arm": arm, "seed": seed, "name": name, **base})
    return found


def run_job(job: dict[str, Any], work: Path) -> None:
    """Train and measure one arm; a finished job is not repeated."""
    out = work / f"{job['name']}.json"
    if out.exists():
        return
    folder = train(job, work)
    is_gold = job["name"].startswith("gold")
    config = RewardModelConfig(path=str(folder), name="score", explain=False)
    if (job["habit"], job["arm"]) == ("length", "bt") and not is_gold:
        penalised = Penalised(config)
        penalised.fit(first(training_pairs(Path(job["data"]), "length"), job["limit"])[:FITTED])
        other = {**job, "arm": "penalty", "name": f"length-penalty-{job['seed']}"}
        write_result(other, penalised, work)
    write_result(job, RewardModelReward(config), work)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def write_result(job: dict[str, Any], scorer: RewardModelReward, work: Path) -> None:
    """Measure one model, and score the answers of best-of-16."""
    is_gold = job["name"].startswith("gold")
    rows = read_answers(work / "answers.jsonl")
    asked = [
        (row["prompt"], t) for row in rows for t in (row["answers"] if is_gold else shown(row))
    ]
    figures = {} if is_gold else measure(job, scorer)
    found = {"figures": figures, "scores": score_answers(scorer, asked)}
    (work / f"{job['name']}.json").write_text(json.dumps({**job, **found}) + "\n")


def run_all(options: argparse.Namespace) -> None:
    """Every job in processes beside each other, then best-of-16 of all models."""
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    answers = work / "answers.jsonl"
    if not answers.exists():
        write_answers(options.data, options.model, answers, options.prompts)
    waiting, running = jobs_of(options), {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            job = waiting.pop(0)
            command = [sys.executable, "-m", "lab.dir.real_pairs", "--job", json.dumps(job)]
            log = (work / f"{job['name']}.log").open("w")
            child = subprocess.Popen(
                [*command, "--work", str(work)], stdout=log, stderr=subprocess.STDOUT
            )
            running[child.pid] = (child, job)
        pid, status = os.wait()
        if pid in running:
            _, job = running.pop(pid)
            said = "done" if status == 0 else "FAILED, see its log"
            print(f"{job['name']}: {said}", flush=True)
    rows = [json.loads(path.read_text()) for path in sorted(work.glob("*.json"))]
    gold = gold_scores([row["scores"] for row in rows if row["name"].startswith("gold")])
    measured = [row for row in rows if not row["name"].startswith("gold")]
    for row in measured:
        row["figures"] |= best_of_16(read_answers(answers), row["scores"], gold)
    write_csv(measured, options.results / "real_pairs.csv")
    write_table(options.results)


KEYS = ("habit", "arm", "seed")


def write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """One line a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(rows, key=lambda row: [str(row[key]) for key in KEYS])
    write_rows(path, [{key: row[key] for key in KEYS} | row["figures"] for row in ordered])


COLUMNS = {
    "accuracy": "accuracy",
    "conflicting": "habit opposes",
    "misled": "right with the habit on the worse",
    "flips": "flips with the side",
    "paid": "paid for the habit",
    "length_correlation": "correlation with length",
    "rmbench_hard": "RM-Bench hard",
    "rmbench_total": "RM-Bench",
    "llmbar": "LLMBar",
    "judgebench": "JudgeBench",
    "gold_best_of_16": "gold of best of 16",
    "marked_picks": "picks with the prefix",
}
"""Figures of the table; the CSV has all."""


def write_table(results: Path) -> None:
    """Mean and standard deviation over seeds."""
    with (results / "real_pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = [
        "# DIR on real pairs",
        "",
        "In brackets how many seeds; ± is the spread over them.",
        "",
    ]
    for habit, arms in ARMS.items():
        names = [name for name in COLUMNS if any(r[name] for r in rows if r["habit"] == habit)]
        heads = " | ".join(COLUMNS[name] for name in names)
        lines += [f"## {habit}", "", f"| arm | {heads} |", "|---" * (len(names) + 1) + "|"]
        for arm in arms:
            mine = [row for row in rows if (row["habit"], row["arm"]) == (habit, arm)]
            cells = [mean_text([float(row[name]) for row in mine if row[name]]) for name in names]
            lines.append(f"| {arm} ({len(mine)}) | {' | '.join(cells)} |")
        lines.append("")
    lines += ["Repeat: `python -m lab.dir.real_pairs --data DATA --jobs 6` on a GPU.", ""]
    (results / "real_pairs.md").write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="runs beside each other")
    parser.add_argument("--work", type=Path, default=Path("runs/lab/dir"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--steps", type=int, default=0, help="0: one pass over the pairs")
    parser.add_argument("--limit", type=int, default=0, help="the shortest test pairs; 0: all")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--cpu", action="store_true", help="a trial with the tiny model")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_job(json.loads(options.job), options.work)
    elif options.table:
        write_table(options.results)
    elif options.data is None:
        raise UserError("--data is missing; expected the folder with alpaca_pairs, llmbar, ...")
    else:
        if options.cpu:
            options.model, options.steps, options.limit, options.prompts = "tiny", 2, 6, 2
            options.results = options.work / "trial"
        run_all(options)


if __name__ == "__main__":
    main()
