"""The commands and their help; what they do is imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.bench_commands import bench
from burnish.cli.judge_commands import judge_app, reward_app
from burnish.cli.skill_commands import skill_app

RUNS = Path("runs")

app = typer.Typer(
    name="burnish",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 done, 2 your input, 3 stopped or failed outside. BURNISH_DEBUG=1 shows "
    "tracebacks.",
    help=(
        "Post-training of language models with rewards that explain themselves.\n\n"
        "Start here: [bold]burnish train[/] trains the embedded model on arithmetic, offline, in "
        "minutes; [bold]burnish show[/] then opens the run and says why each answer got its "
        "reward.\n\n"
        "\b\n"
        "  burnish methods               what there is to train with\n"
        "  burnish try grpo              what the model would see and earn\n"
        "  burnish train grpo steps=20   train; key=value changes any setting\n"
        "  burnish runs                  what has been trained here\n"
        "  burnish show --step 3         the answers of step 3 and their rewards\n"
        "  burnish compare RUN_A RUN_B   which of two runs is better, and how sure that is\n"
        "  burnish judge FILE.jsonl      score or compare responses, and say why\n"
    ),
)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE KEY=VALUE",
        help="A .toml file or the name of a shipped recipe, then settings to change.",
        show_default=False,
    ),
]
RunsFolder = Annotated[
    Path, typer.Option("--runs", metavar="FOLDER", help="Where runs live.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="A run's name, the beginning of it, or its folder; the newest when left out.",
        show_default=False,
    ),
]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from burnish import __version__
        from burnish.cli.console import say

        say(f"burnish {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def train(
    words: Words = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every setting and its origin, then stop.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Start anew although this very run is finished.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only the result and what went wrong.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line for each event.")
    ] = False,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", metavar="FOLDER", help="Where runs live; run.folder by default."),
    ] = None,
) -> int:
    """Train a model; without a recipe, the quick start on the embedded model.

    The run is named after its recipe and settings, so the same command
    continues an interrupted run exactly where it was, and a finished one is
    shown instead of repeated.

    \b
      burnish train                       the quick start
      burnish train dapo                  a shipped recipe
      burnish train my.toml steps=200     your own file, one setting changed
      burnish train grpo optimiser.learning_rate=2e-6 rewards.0.weight=2
      burnish train grpo --print-config   every setting and its origin
    """
    from burnish.cli.train import Options
    from burnish.cli.train import train as work

    return work(words or [], Options(print_config, again, quiet, as_json, runs))


@app.command(name="try")
def try_(
    words: Words = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many to look at.")] = 3,
) -> int:
    """See what a recipe feeds the model and what answers would earn, without a model.

    Three prompts go through a scripted model that gives the right answer, a
    wrong one and none. Tokens are coloured by who wrote them; rewards come
    with their parts and evidence, and with the advantages and loss terms that
    training would make of them.

    \b
      burnish try grpo
      burnish try my.toml task.path=other.jsonl
    """
    from burnish.cli.rehearsal import rehearse

    return rehearse(words or [], prompts)


@app.command()
def runs(folder: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """List runs: status, steps, and the held-out score before and after.

    \b
      burnish runs
      burnish runs --runs /data/experiments --json
    """
    from burnish.cli.listing import list_all

    return list_all(folder, as_json=as_json)


@app.command()
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


@app.command()
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


app.add_typer(judge_app, name="judge")
app.add_typer(reward_app, name="reward")
app.add_typer(skill_app, name="skill")
app.command()(bench)


@app.command()
def report(
    run: RunName = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help=".html or .md; else standard output."),
    ] = None,
    gold: Annotated[
        str,
        typer.Option(
            "--gold", metavar="NAME", help="A reward of weight 0, or file.py:function, to audit by."
        ),
    ] = "",
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


@app.command()
def audit(
    run: RunName = "",
    gold: Annotated[
        str,
        typer.Option(
            "--gold", metavar="NAME", help="A reward of weight 0, or file.py:function, to audit by."
        ),
    ] = "",
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


@app.command()
def methods(as_json: AsJson = False) -> int:
    """List the shipped methods: what each is, how it differs from GRPO, and its paper.

    \b
      burnish methods
    """
    from burnish.cli.methods import list_methods

    return list_methods(as_json=as_json)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, prefix or folder.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help=".jsonl, .json, .csv or .parquet")],
    what: Annotated[str, typer.Option("--what", help="samples or metrics.")] = "samples",
    folder: RunsFolder = RUNS,
) -> int:
    """Write a run's samples or metrics as one file for other tools.

    \b
      burnish export grpo-1f3a samples.parquet
      burnish export grpo-1f3a curves.csv --what metrics
    """
    from burnish.cli.listing import export_run

    return export_run(folder, run, path, what)


@app.command()
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


@app.command(name="serve-reward")
def serve_reward(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|SCORER KEY=VALUE",
            help="A recipe, or file.py:name of a scorer or a reward function.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0 takes any free one.")
    ] = 8321,
    token_env: Annotated[
        str,
        typer.Option("--token-env", metavar="NAME", help="Environment variable with the token."),
    ] = "",
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Tasks scored at the same time.")
    ] = 16,
    deadline_s: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="Wall clock of one task.")
    ] = 120.0,
    as_json: AsJson = False,
) -> int:
    """Serve a recipe's rewards or your own scorer over HTTP, for any trainer.

    Every reply carries the whole reward: value or null, status, parts and
    evidence. Only this machine can reach it unless --host says otherwise,
    and then a token is needed.

    \b
      burnish serve-reward grpo
      burnish serve-reward my_rewards.py:scorer --port 9000
      curl localhost:8321/score -H 'content-type: application/json' \\
        -d '{"task": {"prompt": "3 + 4?", "fields": {"answer": "7"}}, "responses": ["7"]}'
    """
    from burnish.cli.serve_reward import Options
    from burnish.cli.serve_reward import serve_reward as work

    return work(words, Options(host, port, token_env, concurrency, deadline_s, as_json))


@app.command()
def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="CRASH_FOLDER", help="runs/NAME/crash/step-N of a run.")
    ],
) -> int:
    """Run the step that a guard stopped once more, and arrive at the same line.

    \b
      burnish replay runs/grpo-1f3a/crash/step-000012
    """
    from burnish.cli.console import say
    from burnish.cli.needs import training_room

    say(training_room().replay(folder))
    return 0
