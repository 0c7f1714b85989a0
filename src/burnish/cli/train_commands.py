"""`train`, `try`, `methods`, `replay` and `serve-reward`; what they do is imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.run_options import AsJson, Words


def train(
    words: Words = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every setting and its origin, then stop.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="A new run beside one that is finished or began otherwise."),
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
    shown instead of repeated. A run without a finished step whose functions,
    settings or data changed since is begun anew.

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


def try_(
    words: Words = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many to look at.")] = 3,
) -> int:
    """See what a recipe feeds the model and what answers would earn, without a model.

    Three prompts go through a scripted model that gives the right answer, a
    wrong one and none; where there are experts, also theirs and one that
    belongs to another prompt. Tokens are coloured by who wrote them; rewards
    come with their parts and evidence, and with the advantages and loss terms
    that training would make of them.

    \b
      burnish try grpo
      burnish try my.toml task.path=other.jsonl
    """
    from burnish.cli.rehearsal import rehearse

    return rehearse(words or [], prompts)


def methods(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One method alone.", show_default=False)
    ] = "",
    as_json: AsJson = False,
) -> int:
    """List the shipped methods: what each is, how it differs from GRPO, and its paper.

    \b
      burnish methods
      burnish methods gd2po
    """
    from burnish.cli.methods import list_methods

    return list_methods(name, as_json=as_json)


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
