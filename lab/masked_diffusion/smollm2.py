"""SmolLM2 made into a masked diffusion model and tuned on word problems, beside its causal twin.

    python -m lab.masked_diffusion.smollm2 --jobs 3              # GPU: 3 seeds of every arm
    python -m lab.masked_diffusion.smollm2 --model tiny --steps 20 --seeds 1 --prompts 8   # a trial

Arms: one mask, two independent masks, P-POTS, MIRROR, MIRROR with P-POTS, and the causal model under SFT.
All have the same number of forward passes of a row: arms with two masks have half the rows, and P-POTS
pays for its probe with steps. Each run is `burnish train diffusion_words` with the arm's settings. What is
compared: the exact match of held-out answers (greedy; one denoising step a token), and the held-out
loss with uniform rates and the same masks for every arm. The loss of the causal twin is a likelihood
and not a bound, so the two are not compared. A finished run is a row of the CSV and is not done again.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from burnish.config.recipes import resolve
from burnish.lm.folder import load_model
from burnish.training import build
from burnish.training.algorithms.sft import nll_of
from burnish.training.diffusion_rows import held_out_losses
from burnish.training.events import HeldOut
from lab.at_once import at_once
from lab.masked_diffusion.seeds import append, read

RESULTS = Path(__file__).parent / "results"
PROBE = {"probe_rows": 8, "probe_rates": 14, "probe_masks": 4}


class Arm(NamedTuple):
    """One way to train."""

    settings: Mapping[str, Any] = MappingProxyType({})
    forwards: int = 1
    """Of a row and step."""
    is_causal: bool = False

    @property
    def probes(self) -> bool:
        return self.settings.get("rates") == "p_pots"


FITTED = {"rates": "p_pots", **PROBE}
ARMS = {
    "standard": Arm(),
    "two masks": Arm({"passes": 2}, 2),
    "P-POTS": Arm(FITTED),
    "MIRROR": Arm({"masks": "mirror"}, 2),
    "MIRROR + P-POTS": Arm({**FITTED, "masks": "mirror"}, 2),
    "causal": Arm(is_causal=True),
}


class Plan(NamedTuple):
    """What every run of the study has in common."""

    model: str
    steps: int
    batch: int
    prompts: int
    rate: float
    folder: Path


def words_of(name: str, seed: int, plan: Plan) -> tuple[list[str], int]:
    """The command line of one run, and how many forward passes of a row it has."""
    arm = ARMS[name]
    probe = PROBE["probe_rows"] * PROBE["probe_rates"] * PROBE["probe_masks"]
    cost = probe if arm.probes else 0
    batch = plan.batch // arm.forwards
    steps = max(1, (plan.steps * plan.batch - cost) // (batch * arm.forwards))
    train = (
        {"kind": "sft", "batch": batch}
        if arm.is_causal
        else {
            "kind": "diffusion",
            "batch": batch,
            "canvas": 32,
            "rates": "uniform",
            "strata": False,
            "held_out": "rewards",
            "decoding": "block=32",
            **arm.settings,
        }
    )
    if arm.probes:
        train["probe_at"] = steps // 10
    shown = ", ".join(f"{key} = {_toml(value)}" for key, value in train.items())
    path = plan.model if arm.is_causal else f"diffusion:{plan.model}"
    return [
        "diffusion_words",
        f"train={{ {shown} }}",
        f"model.path={path}",
        f"steps={steps}",
        f"run.seed={seed}",
        f"evaluation.prompts={plan.prompts}",
        f"optimiser.learning_rate={plan.rate}",
        f"optimiser.warmup_steps={steps // 20}",
        "checkpoint.every=0",
    ], steps * batch * arm.forwards + cost


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else str(value)


def run(name: str, seed: int, plan: Plan) -> dict[str, Any]:
    """Train one arm, and measure it; a run that was interrupted goes on where it was."""
    words, forwards = words_of(name, seed, plan)
    asked = resolve(words)
    label = f"{name.lower().replace(' ', '-').replace('+', 'and')}-{seed}"
    began = time.perf_counter()
    trainer = build(asked.resolved, plan.folder / label, root=asked.root)
    try:
        events = list(trainer.run())
        loss = (
            _eval_loss(trainer, plan) if not ARMS[name].is_causal else _causal_loss(trainer, plan)
        )
    finally:
        trainer.store.close()
    last = [event for event in events if isinstance(event, HeldOut)][-1]
    config = asked.resolved.value
    return {
        "arm": name,
        "seed": seed,
        "model": plan.model,
        "steps": config.steps,
        "batch": config.train.batch,
        "forwards": forwards,
        "exact_match": "" if last.score is None else f"{last.score.value:.4f}",
        "eval_loss": f"{loss:.4f}",
        "seconds": f"{time.perf_counter() - began:.0f}",
    }


def _eval_loss(trainer: Any, plan: Plan) -> float:
    """Held-out loss with uniform rates in strata and fixed masks."""
    algorithm = trainer.algorithm
    rows = algorithm.rows.held_out(plan.prompts)
    losses = held_out_losses(algorithm.module, rows, algorithm.setup.batches)
    return math.fsum(losses) / len(losses)


def _causal_loss(trainer: Any, plan: Plan) -> float:
    """Mean negative log-likelihood of held-out demonstrations; not a bound."""
    algorithm = trainer.algorithm
    tasks = algorithm.experts.tasks.held_out(plan.prompts)
    shown = [algorithm.experts.as_trajectory(task, i) for i, task in enumerate(tasks)]
    losses = nll_of(algorithm.batches, shown, 0)
    return math.fsum(losses) / len(losses)


def table(rows: list[dict[str, str]]) -> str:
    """Mean, range and standard deviation over seeds, in Markdown."""
    lines = [
        "| arm | seeds | forwards | exact match mean [range] | eval loss mean ± sd | seconds |",
        "|---|--:|--:|---|---|--:|",
    ]
    for name in ARMS:
        own = [row for row in rows if row["arm"] == name]
        if not own:
            continue
        marks = [float(row["exact_match"]) for row in own if row["exact_match"]]
        losses = [float(row["eval_loss"]) for row in own]
        spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        shown = (
            f"{statistics.mean(marks):.3f} [{min(marks):.3f}, {max(marks):.3f}]" if marks else ""
        )
        timed = [float(row["seconds"]) for row in own if row["seconds"]]
        seconds = f"{statistics.mean(timed):.0f}" if timed else "-"
        note = " (a likelihood, not a bound)" if ARMS[name].is_causal else ""
        lines.append(
            f"| {name} | {len(own)} | {own[0]['forwards']} | {shown} | "
            f"{statistics.mean(losses):.4f}{spread}{note} | {seconds} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Every arm and seed that is not done yet."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--model", default="smollm2", choices=("smollm2", "tiny"))
    reader.add_argument("--steps", type=int, default=1000, help="of an arm with one mask")
    reader.add_argument("--batch", type=int, default=32)
    reader.add_argument("--seeds", type=int, default=3)
    reader.add_argument("--prompts", type=int, default=100, help="held-out problems")
    reader.add_argument("--rate", type=float, default=3e-4)
    reader.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    reader.add_argument("--jobs", type=int, default=1, help="runs at a time")
    reader.add_argument("--out", type=Path, default=RESULTS)
    reader.add_argument("--runs", type=Path, default=Path("runs/lab/masked_diffusion"))
    given = reader.parse_args()
    plan = Plan(
        given.model,
        given.steps,
        given.batch,
        given.prompts,
        given.rate,
        given.runs / f"{given.model}-{given.steps}-{given.batch}-{given.rate:g}",
    )
    load_model(f"diffusion:{plan.model}", device="cpu")  # converted once, before anything is timed
    file = given.out / f"{given.model}.csv"
    given.out.mkdir(parents=True, exist_ok=True)
    done = {(row["arm"], row["seed"]) for row in read(file)}
    wanted = [(name, seed) for seed in range(given.seeds) for name in given.arms]
    missing = [(name, seed, plan) for name, seed in wanted if (name, str(seed)) not in done]
    for found in at_once(run, missing, given.jobs):
        append(file, found)
        name, seed = found["arm"], found["seed"]
        print(f"{name}, seed {seed}: exact match {found['exact_match']}, loss {found['eval_loss']}")
    shown = table(read(file))
    (given.out / f"{given.model}.md").write_text(shown, encoding="utf-8")
    print(shown)


if __name__ == "__main__":
    main()
