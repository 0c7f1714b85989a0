"""`burnish bench` with its help; what it does is imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.judge_options import JudgeFlags, Limit, Oracle, takes_judge
from burnish.cli.run_options import AsJson


@takes_judge(without=("anchor",), with_="")
def bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="judgebench, rmbench, llmbar, pandalm, rewardbench2, ppe, healthbench or ifeval.",
        ),
    ],
    data: Annotated[
        Path, typer.Option("--data", metavar="PATH", help="The published file or folder.")
    ],
    flags: JudgeFlags,
    recorded: Annotated[
        Path | None,
        typer.Option("--recorded", metavar="FILE", help="Verdicts on record instead of a judge."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option("--answers", metavar="FILE", help="Responses, for healthbench and ifeval."),
    ] = None,
    limit: Limit = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Results; under results/ by default, of --recorded none."
        ),
    ] = None,
    oracle: Oracle = False,
    as_json: AsJson = False,
) -> int:
    """Measure a judge on a published benchmark, over all, decided and valid items.

    Data is read from where you have it; none is shipped. The same command
    goes on where it was stopped. Two results are compared with burnish
    compare.

    \b
      burnish bench llmbar --data test.parquet --with direct --model smollm2 --limit 50
      burnish bench llmbar --data test.parquet --recorded judges.parquet
      burnish bench ifeval --data test.parquet --model smollm2 --limit 20
    """
    from burnish.cli.bench import Query, run_bench

    return run_bench(name, flags, Query(data, recorded, answers, limit, out, oracle, as_json))
