"""`burnish variance`: where the noise of a masked diffusion model's loss comes from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from burnish.cli.console import emit_json, err, number, out, say, share
from burnish.cli.shared_options import AsJson, ModelName, Seed


def variance(
    model: ModelName,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A recipe with demonstrations, or a file of rows: prompt and answer, text, or "
            "input_ids and prompt_length.",
            show_default=False,
        ),
    ],
    rows: Annotated[int, typer.Option("--rows", min=2, help="Rows to measure on.")] = 16,
    rates: Annotated[int, typer.Option("--rates", min=5, help="Mask rates of the grid.")] = 20,
    masks: Annotated[
        int, typer.Option("--masks", min=2, help="Pairs of masks at each rate.")
    ] = 8,
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="Field of the answer, or of the text.")
    ] = "",
    gradient: Annotated[
        bool, typer.Option("--gradient/--no-gradient", help="Measure gradients too; slower.")
    ] = True,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """How much of a diffusion model's loss is noise of mask, rate and data; which sampler to choose.

    Every sampler is evaluated on one table of losses and gradients, without
    training. Intervals are over rows, 95 %.

    \b
      burnish variance diffusion:tiny diffusion --rows 8
      burnish variance runs/NAME demonstrations.jsonl --json
    """
    from burnish.api.needs import require_torch

    require_torch("models in this process")
    from burnish.api.variance import MeasuredVariance, measure_variance

    with err.status("measuring ...") as status:

        def tell(done: int, of: int) -> None:
            status.update(f"measuring: {done} of {of} rows")

        found: MeasuredVariance = measure_variance(
            model,
            data,
            rows=rows,
            rates=rates,
            masks=masks,
            field=field,
            gradient=gradient,
            seed=seed,
            on_row=tell,
        )
    if as_json:
        emit_json(found.to_json())
        return 0
    report = found.report
    say(f"{found.model} on {data}, {report.rows} rows", style="bold")
    names = {"A": "mask", "B": "rate", "C": "data"}
    for letter, part in report.parts.items():
        one, whole = part.share, part.variance
        say(
            f"{letter} {names[letter]:5} {share(one.value)} [{share(one.low)}, {share(one.high)}] of "
            f"the loss's variance, {number(whole.value)}"
        )
    table = Table(box=None, pad_edge=False)
    for title in ("sampler", "forwards", "loss variance", "gradient trace", "x forwards"):
        table.add_column(title, justify="left" if title == "sampler" else "right")
    for one in sorted(report.samplers, key=lambda sampler: sampler.cost):
        trace = one.gradient
        table.add_row(
            one.name,
            str(one.forwards),
            f"{number(one.loss.value)} [{number(one.loss.low)}, {number(one.loss.high)}]",
            "" if trace is None else f"{number(trace.value)} [{number(trace.low)}, {number(trace.high)}]",
            number(one.cost),
        )
    out.print(table)
    if report.fit.fallback:
        say(f"rates: {report.fit.fallback}", style="yellow")
    error = "" if found.standard_error is None else f" (standard error {number(found.standard_error)})"
    size = "" if found.bits_per_byte is None else f", at most {number(found.bits_per_byte)} bits a byte"
    say(f"log-prob at least {number(found.bound_per_token)} nats a token{error}{size}")
    best = report.best
    keys = {"uniform": "uniform", "P-POTS": "p_pots"}
    ways = {
        "one mask": "train.masks=independent train.passes=1",
        "two independent masks": "train.masks=independent train.passes=2",
        "MIRROR": "train.masks=mirror",
    }
    strata = str(best.strata > 1).lower()
    say(
        f"least noise for its forward passes: {best.name}; train.rates={keys[best.rates]} "
        f"{ways[best.masks]} train.strata={strata}",
        style="green",
    )
    return 0
