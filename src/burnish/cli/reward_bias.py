"""`burnish reward bias`: what does a reward judge by besides quality?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from burnish.cli.console import emit_json, number, out, say
from burnish.cli.drawing import table_of
from burnish.cli.shared_options import AsJson
from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.source import find_function

if TYPE_CHECKING:
    from burnish.bench.bias_report import BiasReport
    from burnish.bench.loaders.reading import Source
    from burnish.rewards.models.term import Pair
    from burnish.rewards.scorer import Scorer


def reward_bias(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE.py:NAME",
            help="A reward model's run or folder, or a reward function of yours.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="FILE", help="Pairs: rows with prompt, chosen and rejected."
        ),
    ],
    rmbench: Annotated[
        Path | None,
        typer.Option("--rmbench", metavar="FOLDER", help="RM-Bench's files, for its matrix."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Pairs to score.")
    ] = 1000,
    as_json: AsJson = False,
) -> int:
    """What does a reward judge by besides quality? Length, markdown, agreement with the user.

    Accuracy where the chosen response has more of it and where the other one
    has; how often the decision flips when it is planted on the other side; how
    far scores move with it; what a linear probe finds in a model's states.

    \b
      burnish reward bias runs/rm --data pairs.jsonl
      burnish reward bias some/folder --data pairs.parquet --rmbench RM-Bench/data
    """
    import anyio

    from burnish.bench.bias_report import bias_report
    from burnish.bench.loaders import load

    scorer = _scorer(target)
    pairs = read_pairs(data)[:limit]
    items = load("rmbench", rmbench) if rmbench is not None else []

    async def work() -> BiasReport:
        return await bias_report(scorer, pairs, rmbench=items)

    report = anyio.run(work)
    if as_json:
        emit_json(asdict(report))
    else:
        print_report(report, str(data))
    return 0


def _scorer(target: str) -> Scorer:
    from burnish.rewards.function import from_function
    from burnish.rewards.models.reward import RewardModelConfig, RewardModelReward

    if ".py:" in target:
        return from_function(find_function(target, "reward"))
    return RewardModelReward(RewardModelConfig(path=target, name="score", explain=False))


def read_pairs(path: Path) -> list[Pair]:
    """Pairs of a file; one line that names the row where something is missing."""
    from burnish.bench.loaders.reading import read_rows, text_of
    from burnish.rewards.models.term import Pair

    rows = read_rows(path, "pairs", [("prompt", "chosen", "rejected")])
    if not rows:
        raise UserError(f"{path} holds no pairs; expected rows with prompt, chosen and rejected.")
    return [
        Pair(Task(row.where, _prompt(row)), text_of(row, "chosen"), text_of(row, "rejected"))
        for row in rows
        if not row.values.get("tie")
    ]


def _prompt(row: Source) -> tuple[Message, ...]:
    """A text, or chat messages."""
    from burnish.bench.loaders.reading import text_of

    given = row.values["prompt"]
    if not isinstance(given, list):
        return (Message("user", text_of(row, "prompt")),)
    try:
        return msgspec.convert(tuple(given), tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise UserError(f"{row.where}: prompt is no text and no chat messages: {error}") from error


def print_report(report: BiasReport, source: str) -> None:
    """One line of accuracy, one row an attribute, and RM-Bench's levels."""
    left = f", {report.unscored} left out without a value" if report.unscored else ""
    say(f"'{report.reward}' on {report.pairs} pairs of {source}{left}", style="bold")
    say(f"accuracy {report.accuracy}")
    heads = ("", "alone", "agrees", "opposes", "planted", "flips", "paid", "corr", "probe")
    rows = [
        (
            one.name,
            number(one.predicts),
            _share(one.natural),
            _share(one.adversarial),
            f"{one.misled.value:.2f}",
            f"{one.flips.value:.2f}",
            f"{one.paid.value:+.2f}",
            number(one.correlation),
            number(one.probe_auc),
        )
        for one in report.attributes
    ]
    table = table_of(*heads)
    for row in rows:
        table.add_row(*row)
    out.print(table)
    say(
        "alone: accuracy of the attribute itself; agrees, opposes: accuracy where the chosen or the "
        "rejected response has more of it; planted: accuracy when it is put on the rejected one; flips: "
        "decisions that change when it is put on the chosen one instead; paid: what planting it adds, in deviations of the scores; probe: AUC of a "
        "linear probe on hidden states (0.5: it is not there)",
        style="bright_black",
    )
    if report.rmbench is not None:
        levels = "  ".join(f"{name} {number(value)}" for name, value in report.rmbench.items())
        say(f"RM-Bench  {levels}")


def _share(estimate: Any) -> str:
    return "-" if estimate is None else f"{estimate.value:.2f} ({estimate.size})"
