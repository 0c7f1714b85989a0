"""`burnish reward bias`: what does a reward judge by besides quality?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from burnish.cli.console import emit_json, number, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson
from burnish.errors import UserError
from burnish.source import find_function
from burnish.tasks.rows import says_tie

if TYPE_CHECKING:
    from burnish.bench.bias_report import BiasReport
    from burnish.bench.loaders.reading import Source
    from burnish.rewards.models.term import Pair
    from burnish.rewards.scorer import Scorer


EXPECTED = "expected a prompt with chosen and rejected, or with a, b and winner"


def reward_bias(
    target: Annotated[
        str,
        Argument(
            metavar="MODEL|FILE.py:NAME",
            help="A reward model's run or folder, or a reward function of yours.",
        ),
    ],
    data: Annotated[
        Path,
        Option(
            metavar="FILE",
            help="Pairs: rows with prompt, chosen and rejected, or with a, b and winner.",
        ),
    ],
    rmbench: Annotated[
        Path | None, Option(metavar="FOLDER", help="RM-Bench's files, for its matrix.")
    ] = None,
    limit: Annotated[int, Option(min=1, metavar="N", help="Pairs to score.")] = 1000,
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
    pairs, without = read_pairs(data)
    items = load("rmbench", rmbench) if rmbench is not None else []

    async def work() -> BiasReport:
        return await bias_report(scorer, pairs[:limit], rmbench=items)

    report = anyio.run(work)
    if as_json:
        emit_json({**asdict(report), "rows_left_out": without, "verdict": report.verdict})
        return 0
    if without:
        say(f"{without} rows of {data} are left out: a tie, no winner, or two equal answers")
    print_report(report, str(data))
    return 0


def _scorer(target: str) -> Scorer:
    from burnish.rewards.function import from_function
    from burnish.rewards.models.trained_model import RewardModelConfig, RewardModelReward

    if ".py:" in target:
        return from_function(find_function(target, "reward"))
    return RewardModelReward(RewardModelConfig(path=target, name="score", explain=False))


def read_pairs(path: Path) -> tuple[list[Pair], int]:
    """The pairs of a file, and how many of its rows name no better response."""
    from burnish.bench.bias_report import as_pairs
    from burnish.bench.loaders.reading import PAIRS, items_of, read_sources

    rows = read_sources(path)
    for row in rows:
        given = {name for name, value in row.values.items() if value is not None}
        if not any(given.issuperset(pair) for pair in (*PAIRS, ("chosen", "rejected"))):
            raise UserError(f"{row.where}: no pair; {EXPECTED}; got {', '.join(row.values)}.")
    compared = items_of([row for row in rows if not _is_tie(row)])
    # Equal answers cannot be told apart: they would count as wrong, whatever the reward.
    pairs = [pair for pair in as_pairs(compared) if pair.chosen != pair.rejected]
    if not pairs:
        got = f"; got {', '.join(rows[0].values)}" if rows else ""
        raise UserError(f"{path}: no row says which response is better; {EXPECTED}{got}.")
    return pairs, len(rows) - len(pairs)


def _is_tie(row: Source) -> bool:
    found = says_tie(row.values.get("tie"))
    if found is None:
        given = row.values["tie"]
        raise UserError(f"{row.where}: tie is {given!r:.40}; expected true, false or nothing.")
    return found


def print_report(report: BiasReport, source: str) -> None:
    """One line of accuracy, one row an attribute, and RM-Bench's levels."""
    left = f", {report.unscored} left out without a value" if report.unscored else ""
    say(f"'{report.reward}' on {report.pairs} pairs of {source}{left}", style="bold")
    say(f"accuracy {report.accuracy}")
    heads = ("", "alone", "agrees", "opposes", "planted", "flips", "paid", "corr", "probe")
    rows = (
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
    )
    print_rows(heads, rows)
    say(
        "alone: accuracy of the attribute itself; agrees, opposes: accuracy where the chosen or the "
        "rejected response has more of it; planted: accuracy when it is put on the rejected one; "
        "flips: decisions that change when it is put on the chosen one instead; paid: what planting "
        "it adds, in deviations of the scores; probe: AUC of a linear probe on hidden states (0.5: "
        "it is not there)",
        style="bright_black",
    )
    if report.rmbench is not None:
        levels = "  ".join(f"{name} {number(value)}" for name, value in report.rmbench.items())
        say(f"RM-Bench  {levels}")
    say(report.verdict, style="bold")


def _share(estimate: Any) -> str:
    return "-" if estimate is None else f"{estimate.value:.2f} ({estimate.size})"
