"""Commands that read runs: `runs`, `show`, `compare`, `view`, ...; imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.run_options import RUNS, AsJson, RunName, RunsFolder

Gold = Annotated[
    str,
    typer.Option(
        "--gold", metavar="NAME", help="A reward of weight 0, or file.py:function, to audit by."
    ),
]


def runs(folder: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """List runs: status, steps, and the held-out score before and after.

    \b
      burnish runs
      burnish runs --runs /data/experiments --json
    """
    from burnish.cli.listing import list_all

    return list_all(folder, as_json=as_json)


def show(
    run: RunName = "",
    step: Annotated[
        int | None, typer.Option("--step", min=0, metavar="N", help="The groups of one step.")
    ] = None,
    sample: Annotated[
        str, typer.Option("--sample", metavar="ID", help="One answer whole, such as 12/train/3.")
    ] = "",
    split: Annotated[
        str, typer.Option("--split", help="Only train, dropped or eval:held_out samples.")
    ] = "",
    worst: Annotated[
        int, typer.Option("--worst", min=0, metavar="N", help="The N lowest rewards.")
    ] = 0,
    best: Annotated[
        int, typer.Option("--best", min=0, metavar="N", help="The N highest rewards.")
    ] = 0,
    failed: Annotated[
        int, typer.Option("--failed", min=0, metavar="N", help="N rewards without a value.")
    ] = 0,
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Open a run: its curves, a step's groups, or one answer and why it got its reward.

    \b
      burnish show                          the newest run at a glance
      burnish show grpo-1f --step 12        prompts and answers of step 12
      burnish show --sample 12/train/3      one answer and its reward tree
      burnish show --worst 5 --split eval:held_out
    """
    from burnish.cli.show import Query
    from burnish.cli.show import show as work

    return work(folder, run, Query(step, sample, split, worst, best, failed, as_json))


def compare(
    run_a: Annotated[
        str,
        typer.Argument(metavar="RUN_A", help="A run's name, the beginning of it, or its folder."),
    ],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="The run to compare it with.")],
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, metavar="N", help="Held out after N steps; else the last of each."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="A curve to show; may be repeated."),
    ] = None,
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Compare two runs: a paired test on the same held-out prompts, and their curves.

    Prompts are matched by id. Both runs are only read, so either may still be
    going on. Runs with other held-out tasks or rewards are refused. Two result
    files of burnish judge or bench are compared item by item.

    \b
      burnish compare grpo-1f dapo-7c
      burnish compare direct.jsonl openrs.jsonl
      burnish compare grpo-1f dapo-7c --step 20
      burnish compare grpo-1f dapo-7c --metric length/mean --metric loss/kl
    """
    from burnish.cli.compare_judges import are_results, compare_results

    if are_results(run_a, run_b):
        return compare_results(run_a, run_b, as_json=as_json)
    from burnish.cli.compare import Query, compare_runs

    return compare_runs(folder, run_a, run_b, Query(step, tuple(metric or ()), as_json))


def report(
    run: RunName = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help=".html or .md; else standard output."),
    ] = None,
    gold: Gold = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of HTML.")] = False,
    folder: RunsFolder = RUNS,
) -> int:
    """Write what a run came to as one file: curves, forecast and fact, samples, audit, versions.

    \b
      burnish report > report.html
      burnish report grpo-1f --out report.md
    """
    from burnish.cli.write_report import write_report

    return write_report(folder, run, out, gold, markdown)


def audit(
    run: RunName = "",
    gold: Gold = "",
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Is it learning, or pleasing the reward? What moved in a run and was paid, ranked.

    Length, format, phrases, copies, entropy, spread, components, conflicts,
    flips of a judge; each with the ten answers that moved it. An audit, not
    an alarm: learning moves things too.

    \b
      burnish audit
      burnish audit grpo-1f --gold my_checks.py:really_right
    """
    from burnish.cli.write_report import print_audit

    return print_audit(folder, run, gold, as_json)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, prefix or folder.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help=".jsonl, .json, .csv or .parquet")],
    what: Annotated[str, typer.Option("--what", help="samples or metrics.")] = "samples",
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV: keep texts that a spreadsheet runs as formulas.")
    ] = False,
    folder: RunsFolder = RUNS,
) -> int:
    """Write a run's samples or metrics as one file for other tools.

    \b
      burnish export grpo-1f3a samples.parquet
      burnish export grpo-1f3a curves.csv --what metrics
    """
    from burnish.cli.listing import export_run

    return export_run(folder, run, path, what, raw=raw)


def view(
    references: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN ...]",
            help="Runs by name, beginning of a name, or folder; all of the folder when left out.",
            show_default=False,
        ),
    ] = None,
    folder: RunsFolder = RUNS,
    results: Annotated[
        Path,
        typer.Option("--results", metavar="FOLDER", help="Where results of burnish bench live."),
    ] = Path("results"),
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0 takes any free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> int:
    """Look at runs in a browser: curves, groups, single rollouts, search, comparison.

    Only this machine can reach it, and only with the address it prints. Runs
    are only read; one that is being trained is followed live.

    \b
      burnish view
      burnish view grpo-1f --no-browser --port 8080
    """
    from burnish.cli.view import Options
    from burnish.cli.view import view as work

    return work(references or [], Options(folder, results, port, browser))
