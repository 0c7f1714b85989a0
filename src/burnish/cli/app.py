"""The commands and their help; what they do is imported when they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish.cli.bench_commands import bench
from burnish.cli.judge_commands import judge_app, reward_app
from burnish.cli.run_commands import audit, compare, export, report, runs, show, view
from burnish.cli.skill_commands import skill_app
from burnish.cli.train_commands import methods, replay, serve_reward, train, try_

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


app.command()(train)
app.command(name="try")(try_)
app.command()(runs)
app.command()(show)
app.command()(compare)
app.add_typer(judge_app, name="judge")
app.add_typer(reward_app, name="reward")
app.add_typer(skill_app, name="skill")
app.command()(bench)
app.command()(report)
app.command()(audit)
app.command()(methods)
app.command()(export)
app.command()(view)
app.command(name="serve-reward")(serve_reward)
app.command()(replay)
