"""What a step of each method costs over a step of GRPO at the same batch.

    python -m lab.cost                  on a GPU; --cpu for a trial

All methods live in one process and take turns step by step, on the same task, rewards, sizes, seed
and weights: the learning rate is 0, so every method sees the very same rollouts, and only
`[policy]` differs. Reported are ratios of medians; the first rounds are thrown away.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.plan import GPU, studies_of
from lab.recipes import WARM_START, start_settings, write_recipe
from lab.slots import make_start
from lab.tables import write_rows

if TYPE_CHECKING:
    from burnish.training.trainer import Trainer

SNR = {"kind": "snr_conflict", "tau": 0.8}
SUM = {"kind": "sum_then_normalise", "scale": "group_std"}
ELASTIC = {"kind": "elastic", "low": 0.2, "high": 0.2, "strength": 0.5}
FROZEN = [{"kind": "reference_frozen", "prompts": 16, "samples": 4}]
CONTRAST = {"kind": "contrastive", "reward": "arguments", "loss": "soft_nn", "dedup": True}
FOUR = {"update.minibatches": 4}
BASE: Mapping[str, Any] = {
    "policy.advantage": SUM,
    "policy.select": {"kind": "all"},
    "policy.post_scale": {"kind": "none"},
}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "GRPO": ("", {}),
    # The control: what differs here is noise.
    "GRPO again": ("GRPO", {}),
    "GDPO": ("GRPO", {"policy.advantage": {"kind": "normalise_then_sum"}}),
    "GD2PO (SNR)": (
        "GRPO",
        {"policy.advantage": {"kind": "normalise_then_sum"}, "policy.select": SNR},
    ),
    # These rewards are no wins and losses: a threshold below 1 would drop nearly every group.
    "BRPO (without its judge)": (
        "GRPO",
        {
            "policy.advantage": {"kind": "raw"},
            "policy.select": {"kind": "skew", "threshold": 1.0},
        },
    ),
    "CLIPO (soft_nn, dedup)": (
        "GRPO",
        {"policy.shaping": [CONTRAST]},
    ),
    "AFRL (stepwise)": (
        "GRPO",
        {"policy.advantage": {"kind": "stepwise", "rewards": ["arguments"]}},
    ),
    "AFRL (16 demonstrations)": (
        "GRPO",
        {"policy.auxiliary": [{"kind": "sft", "coefficient": 0.1, "batch": 16}]},
    ),
    "MedAlign (reference-frozen, tri-factor)": (
        "GRPO",
        {
            "policy.shaping": FROZEN,
            "policy.weights": {
                "kind": "tri_factor",
                "severity": {"format": 3.0},
                "threshold": {"format": 0.5},
            },
        },
    ),
    "GRPO, 4 updates": ("", FOUR),
    "ETR, 4 updates": ("GRPO, 4 updates", {**FOUR, "policy.trust_region": ELASTIC}),
}
"""Name -> the baseline it is compared with, and its settings."""
TIMES = ("time/step_s", "time/rollout_s", "time/update_s")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write `results/cost.csv` and `results/cost.md`."""
    parser = argparse.ArgumentParser(prog="python -m lab.cost", description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=4, help="steps thrown away")
    parser.add_argument("--start", default="", help="folder of start weights; made where empty")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    asked = parser.parse_args(words)
    if asked.steps <= asked.warmup:
        parser.error(f"--steps {asked.steps} must exceed --warmup {asked.warmup}")
    with tempfile.TemporaryDirectory() as folder:
        start = asked.start or ("" if asked.cpu else str(_warm_start(Path(folder))))
        found = measure(Path(folder), asked.steps, start, asked.cpu)
    rows = [_row(name, found, asked.warmup) for name in METHODS]
    out = asked.out / "trial" if asked.cpu else asked.out
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "cost.csv", rows)
    what = "random tiny model on a CPU: the host's share alone" if asked.cpu else "start weights"
    text = (
        f"Ratios of medians in one run, methods in turns; {what}. A ratio whose quartiles hold 1 is "
        f"not told apart from its baseline.\n\n{_table(rows)}"
    )
    (out / "cost.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _warm_start(folder: Path) -> Path:
    """Start weights that know the game a little, or hardly any group would have a signal."""
    study = studies_of("gd2po")[0]
    recipe = folder / "start.toml"
    digest = write_recipe(recipe, study.arms[0].recipe, start_settings(study, GPU))
    reason = make_start(recipe, digest, threads=os.cpu_count() or 1, timeout_s=600)
    if reason:
        raise SystemExit(reason)
    return folder / WARM_START


def measure(
    folder: Path, steps: int, start: str, on_cpu: bool
) -> dict[str, list[dict[str, float]]]:
    """The metrics of every step of every method, taken in turns."""
    runs = {}
    for name, (_, settings) in METHODS.items():
        runs[name] = _steps(_trainer(folder, name, steps, start, on_cpu, settings))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(steps):
        for name, run in runs.items():
            found[name].append(next(run))
    for run in runs.values():
        run.close()
    return found


def _trainer(
    folder: Path,
    name: str,
    steps: int,
    start: str,
    on_cpu: bool,
    settings: Mapping[str, Any],
) -> Trainer:
    from burnish.config import Config, load
    from burnish.training.builder import build

    sizes: dict[str, Any] = {
        # One more than is asked for: the last step would be followed by a checkpoint.
        "steps": steps + 1,
        "stages": [],
        "optimiser.learning_rate": 0.0,
        "evaluation.prompts": 0,
        "checkpoint.every": 0,
        "guards.useless_steps": 100_000,
    }
    if on_cpu:
        sizes |= {"model.path": "tiny", "model.device": "cpu", "rollout.prompts": 4}
        # A random model has no right answer; its texts differ in length alone.
        sizes |= {"rewards": TRIAL_REWARDS, "evaluation.part": ""}
    elif start:
        sizes["model.path"] = str(Path(start).absolute())
    file = folder / f"{len(list(folder.glob('*.toml')))}.toml"
    write_recipe(file, "gd2po", {**sizes, **BASE, **settings})
    return build(load(Config, file), folder / file.stem, root=folder, recipe=name)


TRIAL_REWARDS = [
    {"kind": "function", "name": name, "path": "lab.cost:_length"}
    for name in ("format", "name", "arguments")
]


def _length(text: str) -> float:
    return len(text) / 100


def _steps(trainer: Trainer) -> Generator[dict[str, float], None, None]:
    """The metrics of one step after the other."""
    from burnish.training.events import StepDone

    try:
        for event in trainer.run():
            if isinstance(event, StepDone):
                yield dict(event.metrics)
    finally:
        trainer.store.close()


def _row(name: str, found: Mapping[str, list[dict[str, float]]], warmup: int) -> dict[str, Any]:
    baseline = METHODS[name][0]
    row: dict[str, Any] = {"method": name, "baseline": baseline}
    for key in TIMES:
        own = statistics.median(step[key] for step in found[name][warmup:])
        row[key] = own
        if baseline:
            base = [step[key] for step in found[baseline][warmup:]]
            row[f"{key} ratio"] = own / statistics.median(base)
    if baseline:
        # Neighbours in time share what else the machine was doing.
        pairs = zip(found[name][warmup:], found[baseline][warmup:], strict=True)
        ratios = sorted(step["time/step_s"] / base["time/step_s"] for step, base in pairs)
        row["lower quartile"] = ratios[len(ratios) // 4]
        row["upper quartile"] = ratios[-1 - len(ratios) // 4]
    row["kept"] = statistics.fmean(step.get("kept", 1.0) for step in found[name][warmup:])
    return row


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "| method | over | step ms | step ratio (quartiles of neighbours) | update ratio | rollouts kept |"
    lines = [head, "|---|---|--:|--:|--:|--:|"]
    for row in rows:
        ratio = update = ""
        if row["baseline"]:
            quartiles = f"{row['lower quartile']:.3f} to {row['upper quartile']:.3f}"
            ratio = f"{row['time/step_s ratio']:.3f} ({quartiles})"
            update = f"{row['time/update_s ratio']:.3f}"
        step_ms = f"{1000 * row['time/step_s']:.1f}"
        cells = (row["method"], row["baseline"], step_ms, ratio, update, f"{row['kept']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
