"""Does a search for a system prompt help the embedded model, and does a control help as much?

    python -m lab.prompt_optimisation.demonstration --out lab/prompt_optimisation/results

Small sums of the quick start, greedy answers, on the CPU. SmolLM2 follows examples better than rules,
so candidates are worked examples: questions of the shown slice that the model itself solved. The
control has the same questions with the answers of others. Both arms of a seed share a journal, so
that the present prompt is measured once.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import burnish
from burnish.agents.prompt import PromptResult, WorkedExamples, verdict_line
from burnish.lm import open_lm

SIZES = {"shown": 24, "trial": 32, "confirm": 32}
ARMS = {"worked examples": False, "control: shuffled answers": True}
WORK = Path("runs/prompt_optimisation")
"""Prompts, reports and the journals by which a second start goes on."""
EXAMPLES = (2, 6)
"""Examples of the two candidates."""


def main() -> int:
    """Run both arms for every seed; what is done already stands in the journals."""
    given = argparse.ArgumentParser()
    given.add_argument("--out", type=Path, required=True)
    given.add_argument("--model", default="smollm2")
    given.add_argument("--seeds", type=int, default=3)
    given.add_argument("--max-tokens", type=int, default=12)
    options = given.parse_args()
    for folder in (options.out, WORK):
        folder.mkdir(parents=True, exist_ok=True)
    # One kind of number everywhere, so that a CPU without bfloat16 gives the same answers.
    lm = open_lm(options.model, dtype="float32", device="cpu")
    rows = []
    for seed in range(options.seeds):
        config = burnish.Config.load("quickstart", f"run.seed={seed}")
        for arm, shuffled in ARMS.items():
            found = burnish.optimise_prompt(
                lm,
                config,
                proposer=WorkedExamples(EXAMPLES, shuffled=shuffled),
                rounds=1,
                candidates=len(EXAMPLES),
                seed=0,
                max_tokens=options.max_tokens,
                out=WORK / f"seed{seed}.txt",
                tell=lambda line: print(line, file=sys.stderr, flush=True),
                **SIZES,
            )
            rows.append(row(seed, arm, found))
            (options.out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
            (options.out / "table.md").write_text(table(rows))
    return 0


def row(seed: int, arm: str, found: PromptResult) -> dict[str, Any]:
    """One arm of one seed."""
    tried = [one.paired for one in found.tried if one.paired is not None]
    best = max(tried, key=lambda one: one.after, default=None)
    confirmed = found.confirmation
    return {
        "seed": seed,
        "arm": arm,
        "start": found.start_score,
        "best": best and best.after,
        "p": best and best.p,
        "level": found.settings.level,
        "accepted": found.best != found.start,
        "confirmed": found.is_confirmed,
        "held_out_before": confirmed and confirmed.before,
        "held_out_after": confirmed and confirmed.after,
        "held_out_p": confirmed and confirmed.p,
        "verdict": verdict_line(found),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        f"Trial slice of {SIZES['trial']} tasks, held-out slice of {SIZES['confirm']}; a try passes at "
        f"p <= {rows[0]['level']:.3g}.",
        "",
        "| seed | candidates | present prompt | best candidate | p | passed | held out: before, after, p | used |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        held = "not tried"
        if one["held_out_after"] is not None:
            held = (
                f"{one['held_out_before']:.3f}, {one['held_out_after']:.3f}, "
                f"{one['held_out_p']:.3g}"
            )
        best, p = ("-" if one[key] is None else f"{one[key]:.3g}" for key in ("best", "p"))
        passed, used = ("yes" if one[key] else "no" for key in ("accepted", "confirmed"))
        cells = [one["seed"], one["arm"], f"{one['start']:.3f}", best, p, passed, held, used]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
