"""`burnish bench` with its help; what it does is imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.judge_options import (
    ApiKeyEnv,
    AsJson,
    BothOrders,
    BudgetCalls,
    BudgetTokens,
    BudgetUsd,
    Cache,
    Concurrency,
    Limit,
    MaxTokens,
    Model,
    Option,
    Oracle,
    Prices,
    Record,
    Replay,
    Temperature,
    With,
)


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
    with_: With = "",
    model: Model = "",
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
    option: Option = None,
    both_orders: BothOrders = True,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    concurrency: Concurrency = 16,
    api_key_env: ApiKeyEnv = "",
    prices: Prices = "",
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    cache: Cache = None,
    record: Record = None,
    replay: Replay = None,
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
    from burnish.cli.judging import JudgeFlags, read_prices

    flags = JudgeFlags(
        with_,
        model,
        tuple(option or ()),
        both_orders,
        "",
        max_tokens,
        temperature,
        concurrency,
        api_key_env,
        read_prices(prices),
        budget_calls,
        budget_tokens,
        budget_usd,
        cache,
        record,
        replay,
    )
    return run_bench(name, flags, Query(data, recorded, answers, limit, out, oracle, as_json))
