"""The flags that the judging commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or Parquet.", show_default=False)
]
With = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="NAME",
        help="direct, point, list, openrs, skill_rm, genrm or rubric.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="smollm2, a model folder, or http://host:port/v1#model; tiny reads too little.",
    ),
]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="A setting of the judge; may be repeated."),
]
BothOrders = Annotated[
    bool,
    typer.Option("--both-orders/--one-order", help="Ask about pairs in both orders."),
]
Anchor = Annotated[
    str,
    typer.Option(
        "--anchor", metavar="COLUMN", help="Compare each response with this column's text."
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=0, metavar="N", help="At most N; 0 for all.")]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="Most tokens of one reply; 1024, or what it needs."),
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Items at the same time.")]
ApiKeyEnv = Annotated[
    str,
    typer.Option(
        "--api-key-env", metavar="NAME", help="Environment variable with the server's key."
    ),
]
Prices = Annotated[
    str,
    typer.Option(
        "--prices", metavar="IN,OUT", help="Dollars for a million tokens read and written."
    ),
]
BudgetCalls = Annotated[int | None, typer.Option("--budget-calls", min=0, help="Most calls.")]
BudgetTokens = Annotated[int | None, typer.Option("--budget-tokens", min=0, help="Most tokens.")]
BudgetUsd = Annotated[float | None, typer.Option("--budget-usd", min=0.0, help="Most dollars.")]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="FILE", help="Keep replies here; equal questions cost once."),
]
Record = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="Write every question and raw reply here."),
]
Replay = Annotated[
    Path | None,
    typer.Option("--replay", metavar="FILE", help="Answer from such a record, without a call."),
]
Oracle = Annotated[
    bool,
    typer.Option(
        "--oracle", help="Let the judge use hidden columns (the reference); this is counted."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text.")]
