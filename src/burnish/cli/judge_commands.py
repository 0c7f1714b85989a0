"""`judge`, `judge probe` and the `reward` commands; what they do is imported when called.

`burnish judge FILE` and `burnish judge probe FILE` share a word: the group takes what is none of
its commands as the file to judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from burnish.cli.judge_options import File, JudgeFlags, Limit, Oracle, takes_judge
from burnish.cli.run_options import RUNS, AsJson, RunsFolder

FILE = "file"
"""The command that a word which is no command leads to; it does not show in what people read."""


class FileGroup(TyperGroup):
    """A group whose default is its command `file`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [FILE, *args]
        return super().parse_args(ctx, args)


class FileCommand(TyperCommand):
    """That default; in usage and mistakes it goes by the name of its group."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


judge_app = typer.Typer(
    cls=FileGroup,
    rich_markup_mode="rich",
    help="Score or compare the responses of a file; [bold]judge probe[/] looks for biases.",
)
reward_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="[bold]reward check[/]: is a reward fit for training? [bold]reward weigh[/]: which of "
    "several rewards would training follow?",
)


@judge_app.command(FILE, cls=FileCommand, hidden=True)
@takes_judge()
def judge(
    file: File,
    flags: JudgeFlags,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Results; rows already in it are not asked again."
        ),
    ] = None,
    show: Annotated[
        list[str] | None,
        typer.Option("--show", metavar="COLUMN", help="A column that the judge may see."),
    ] = None,
    limit: Limit = 0,
    explain: Annotated[
        int, typer.Option("--explain", min=0, metavar="N", help="Rows to explain in full.")
    ] = 5,
    oracle: Oracle = False,
    as_json: AsJson = False,
) -> int:
    """Score or compare the responses of a file; every score explains itself.

    A row has a prompt (or messages) and a response, responses, a and b, or
    chosen and rejected. What it will take is printed before it starts. A
    judge that fails gives no number: such rows are listed with their status.
    On a laptop's CPU smollm2 takes minutes a row; the second line is a quick
    look. Another command looks for biases: burnish judge probe --help

    \b
      burnish judge pairs.jsonl --with direct --model smollm2
      burnish judge pairs.jsonl --model smollm2 --limit 1 --one-order --max-tokens 60
      burnish judge answers.jsonl --with point --model http://localhost:8000/v1#my-model
      burnish judge pairs.jsonl --with openrs --model DIR --out judged.jsonl --budget-calls 500
      burnish judge probe pairs.jsonl --with direct --model smollm2
    """
    from burnish.cli.judge import Query, judge_file

    return judge_file(file, flags, Query(out, limit, tuple(show or ()), explain, oracle, as_json))


@judge_app.command()
@takes_judge(without=("both_orders", "anchor"), both_orders=False)
def probe(
    file: File,
    flags: JudgeFlags,
    bench: Annotated[
        str,
        typer.Option(
            "--bench", metavar="NAME", help="Read the file as this benchmark publishes it."
        ),
    ] = "",
    edits: Annotated[
        str,
        typer.Option("--edits", metavar="LIST", help="all, none, or names such as padding,praise."),
    ] = "all",
    own: Annotated[
        str,
        typer.Option("--own", metavar="AUTHOR", help="Whose responses are the judge's own."),
    ] = "",
    limit: Limit = 50,
    as_json: AsJson = False,
) -> int:
    """What a judge prefers besides quality: place, length, format, its own, with intervals.

    Every pair is asked about in both orders; then each first response meets
    itself with padding, a heading and so on. What chance alone would rarely
    do is named as a bias.

    \b
      burnish judge probe pairs.jsonl --with direct --model smollm2
      burnish judge probe test.parquet --bench llmbar --model smollm2 --limit 30 --edits none
    """
    from burnish.cli.probe import Query, probe_file

    return probe_file(file, flags, Query(bench, limit, edits, own, as_json))


@reward_app.command("check")
def reward_check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|FILE.py:NAME KEY=VALUE",
            help="A recipe with settings to change, or a reward function of yours.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Rows with prompt, responses and fields."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Groups to score.")
    ] = 50,
    as_json: AsJson = False,
) -> int:
    """Is a reward fit for training? Range, ties, failures, cost, and what cheap edits do to it.

    Every response is scored as it is, with padding, repetition, hedging and
    other formats, as its first word alone and as no text at all. Without
    --data a recipe's own tasks are answered right, wrong and not at all.

    \b
      burnish reward check grpo
      burnish reward check my_rewards.py:close --data answers.jsonl
    """
    from burnish.cli.reward_check import Query, check

    return check(words, Query(data, limit, as_json))


@reward_app.command("weigh")
def reward_weigh(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE.jsonl",
            help='A run, or rows of {"group": ..., "rewards": {NAME: NUMBER}}.',
            show_default=False,
        ),
    ],
    step: Annotated[
        str, typer.Option("--step", metavar="N|A..B", help="Tell only of these steps of a run.")
    ] = "",
    severity: Annotated[
        list[str] | None,
        typer.Option("--severity", metavar="NAME=X", help="How much a broken rule counts."),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option("--threshold", metavar="NAME=X", help="A reward below X breaks its rule."),
    ] = None,
    reference: Annotated[
        int | None,
        typer.Option(
            "--reference", min=1, metavar="N", help="The first N answers are the start model's."
        ),
    ] = None,
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Which reward would training follow? Four ways to join recorded rewards, side by side.

    The sum, GDPO, rewards in units of the start model, and these with MedAlign's
    weights: what share of the advantage each reward has, and why it weighs what
    it weighs. Under a threshold: the reasons that the reward gave, with a sample
    each. A run's own settings hold where it has them; what of its recipe none of
    the four follows is named. No model, no GPU.

    \b
      burnish reward weigh medalign-1f --step 0..9
      burnish reward weigh grpo-7c --threshold safety=-0.5 --severity safety=3
      burnish reward weigh rewards.jsonl --reference 64 --json
    """
    from burnish.cli.reward_weigh import Query, weigh

    query = Query(step, tuple(severity or ()), tuple(threshold or ()), reference, as_json)
    return weigh(folder, source, query)
