"""Where the noise of masked diffusion comes from, and what each sampler makes of it, at fixed weights.

    python -m lab.masked_diffusion.variance

A sorter that is trained for 260 steps, half of the way, is measured on 24 held-out rows: variance of one
row's loss, and trace of the covariance of its gradient at the output layer, for every sampler from one
table (`burnish.models.masked_diffusion.variance_report`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from burnish.models.masked_diffusion import stratum_counts
from burnish.models.masked_diffusion.objective import Rows as ReportRows
from burnish.models.masked_diffusion.report import Interval, VarianceReport, variance_report
from lab.masked_diffusion import sorting
from lab.masked_diffusion.seeds import ARMS, BATCH, RESULTS, generator, train
from lab.masked_diffusion.sorting import MASK


def main() -> None:
    parser = argparse.ArgumentParser(description="Variance of masked diffusion by sampler.")
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--rates", type=int, default=16)
    parser.add_argument("--masks", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, _ = train(ARMS["standard"], 0, given.steps, 0)
    held_out = sorting.rows(given.rows, generator("report"))
    table = ReportRows(*held_out, torch.ones_like(held_out.eligible_BL), 0)
    report = variance_report(
        model,
        table,
        MASK,
        parameters=[model.head.weight],
        rates=given.rates,
        masks=given.masks,
        strata=stratum_counts(BATCH).count,
        on_row=lambda done, of: print(f"row {done} of {of}", flush=True),
    )
    given.out.mkdir(parents=True, exist_ok=True)
    text = page(report, given.steps)
    (given.out / "variance.md").write_text(text)
    (given.out / "variance.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    print(text)


def page(report: VarianceReport, steps: int) -> str:
    """The tables in Markdown."""
    lines = [
        f"`python -m lab.masked_diffusion.variance`: a sorter after {steps} steps, {report.rows} "
        f"held-out rows, {len(report.t)} rates, {report.masks} pairs of masks each "
        f"({report.forwards} forward passes). 95 % intervals over rows, by bootstrap.\n",
        "| part of the loss's variance | variance | share |",
        "|---|---|---|",
    ]
    names = {"A": "A, mask pattern", "B": "B, mask rate", "C": "C, data"}
    for key, part in report.parts.items():
        lines.append(f"| {names[key]} | {cell(part.variance, 4)} | {cell(part.share, 2)} |")
    lines += [
        "",
        "| sampler | forwards | loss variance | gradient trace, output layer | trace x forwards |",
        "|---|---|---|---|---|",
    ]
    for one in report.samplers:
        trace = cell(one.gradient, 2) if one.gradient else ""
        row = [one.name, one.forwards, cell(one.loss, 4), trace, f"{one.cost:.2f}"]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    density = report.fit.fine_density
    lines += [
        "",
        f"Least trace for its forward passes: {report.best.name}. Fitted density: p(0) = "
        f"{density[0].item():.2f}, p(1/2) = {density[len(density) // 2].item():.2f}, p(1) = "
        f"{density[-1].item():.2f}.",
    ]
    return "\n".join(lines) + "\n"


def cell(figure: Interval, digits: int) -> str:
    """A figure with its interval."""
    return f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"


if __name__ == "__main__":
    main()
