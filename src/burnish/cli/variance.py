"""`burnish variance`: where the noise of a masked diffusion model's loss comes from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option

from burnish.cli.console import Reporter, emit_json, number, say, share
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson, LocalModelName, Seed, takes

if TYPE_CHECKING:
    from burnish.models.masked_diffusion.report import Interval, VarianceReport

SOURCES = {"A": "mask", "B": "rate", "C": "data"}
RATES = {"uniform": "uniform", "P-POTS": "p_pots"}
MASKS = {
    "one mask": "train.masks=independent train.passes=1",
    "two independent masks": "train.masks=independent train.passes=2",
    "MIRROR": "train.masks=mirror",
}
"""How a training is told to sample so."""


class VarianceFlags(NamedTuple):
    """Arguments of `measure_variance`."""

    rows: Annotated[int, Option(min=2, help="Rows to measure on.")] = 16
    rates: Annotated[int, Option(min=5, help="Mask rates of the grid.")] = 20
    masks: Annotated[int, Option(min=2, help="Pairs of masks at each rate.")] = 8
    batch: Annotated[
        int,
        Option(
            min=1,
            max=100_000,
            help="Rows of a training step: its rates have the root of that many strata, rounded up.",
        ),
    ] = 32
    field: Annotated[str, Option(metavar="NAME", help="Field of the answer, or of the text.")] = ""
    gradient: Annotated[
        bool, Option("--gradient/--no-gradient", help="Measure gradients too; slower.")
    ] = True
    seed: Seed = 0


@takes(VarianceFlags)
def variance(
    model: LocalModelName,
    data: Annotated[
        str,
        Argument(
            metavar="DATA",
            help="A recipe with demonstrations, or a file of rows: prompt and answer, text, or "
            "input_ids and prompt_length.",
        ),
    ],
    flags: VarianceFlags,
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
    from burnish.api.variance import measure_variance

    with Reporter() as report:
        tell = partial(report, "measuring rows")
        tell(0, flags.rows)
        found = measure_variance(model, data, **flags._asdict(), on_row=tell)
    if as_json:
        emit_json(found.to_json())
        return 0
    say(f"{found.model} on {data}, {found.report.rows} rows", style="bold")
    _print_parts(found.report)
    _print_samplers(found.report)
    if found.report.fit.fallback:
        say(f"rates: {found.report.fit.fallback}", style="yellow")
    error, size = found.standard_error, found.bits_per_byte
    say(
        f"log-prob at least {number(found.bound_per_token)} nats a token (a bound"
        + ("" if error is None else f", standard error {number(error)}")
        + (")" if size is None else f"); its part for the text is {number(size)} bits a byte")
    )
    _print_choice(found.report)
    strata = max(one.strata for one in found.report.samplers)
    say(
        f"{strata} strata: those of a step of {flags.batch} rows; another: --batch",
        style="bright_black",
    )
    return 0


def _print_parts(report: VarianceReport) -> None:
    for letter, part in report.parts.items():
        one, whole = part.share, part.variance
        say(
            f"{letter} {SOURCES[letter]:5} {share(one.value)} [{share(one.low)}, {share(one.high)}] of "
            f"the loss's variance, {number(max(whole.value, 0.0))}"
        )


def _print_samplers(report: VarianceReport) -> None:
    titles = ("sampler", "forwards", "loss variance", "gradient trace", "x forwards")
    rows = []
    for one in sorted(report.samplers, key=lambda sampler: sampler.cost):
        cells = (_interval(one.loss), _interval(one.gradient), number(one.cost))
        rows.append((one.name, str(one.forwards), *cells))
    print_rows(titles, rows)


def _interval(figure: Interval | None) -> str:
    if figure is None:
        return ""
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"


def _print_choice(report: VarianceReport) -> None:
    best = report.best
    say(
        f"least noise for its forward passes: {best.name}; train.rates={RATES[best.rates]} "
        f"{MASKS[best.masks]} train.strata={str(best.strata > 1).lower()}",
        style="green",
    )
    if best.rates == "P-POTS":
        say("its probe comes on top, once", style="bright_black")
    high = (best.gradient or best.loss).high * best.forwards
    near = sum(one.cost <= high for one in report.samplers) - 1
    if near:
        say(
            f"{near} of the other {len(report.samplers) - 1} lie within its interval; more --rows tell "
            "them apart",
            style="bright_black",
        )
