"""`burnish train`: start, continue or show a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from burnish.api.cluster import joined, run_cluster, starts_parts
from burnish.api.launch import (
    choose_folder,
    edited_files,
    interrupted_after,
    open_trainer,
    play,
    refuse_other_settings,
    status_of,
)
from burnish.api.needs import import_training
from burnish.cli.console import complain, emit_json, err, interval, out, say, warn
from burnish.cli.shared_options import Words
from burnish.store import RunStatus, RunStore

if TYPE_CHECKING:
    from burnish.config.recipes import Asked
    from burnish.training.trainer import Trainer


def train(
    words: Words = None,
    print_config: Annotated[
        bool, Option("--print-config", help="Show every setting and its origin, then stop.")
    ] = False,
    again: Annotated[
        bool, Option("--again", help="A new run beside one that is finished or began otherwise.")
    ] = False,
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Only the result and what went wrong.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="One JSON object a line for each event.")
    ] = False,
    tracker: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Also send metrics, config and result there: wandb, tensorboard or mlflow; may be "
            "repeated.",
            autocompletion=lambda: ["wandb", "tensorboard", "mlflow"],
        ),
    ] = None,
    runs: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where runs live; run.folder by default.")
    ] = None,
) -> int:
    """Train a model; without a recipe, the quick start on the embedded model.

    The run is named after its recipe and settings, so the same command
    continues an interrupted run exactly where it was, and a finished one is
    shown instead of repeated. A run without a finished step whose functions,
    settings or data changed since is reset.

    \b
      burnish train                       the quick start
      burnish train dapo                  a shipped recipe
      burnish train my.toml steps=200     your own file, one setting changed
      burnish train grpo optimiser.learning_rate=2e-6 rewards.0.weight=2
      burnish train grpo --print-config   every setting and its origin
    """
    from burnish.cli.progress import view_for
    from burnish.config import render
    from burnish.config.recipes import resolve
    from burnish.texts import toml_value

    typed = words or []
    if tracker:
        typed = [*typed, f"trackers={toml_value(tracker)}"]
    asked = resolve(typed)
    if print_config:
        out.file.write(render(asked.resolved).rstrip("\n") + "\n")
        return 0
    asked = joined(asked)
    folder = choose_folder(asked, runs, again=again)
    kept = [*(["--runs", str(runs)] if runs else []), *(["--again"] if again else [])]
    if status_of(folder) is not RunStatus.FINISHED and starts_parts(asked):
        shown = [*(["--quiet"] if quiet else []), *(["--json"] if as_json else [])]
        return run_cluster(asked, folder, [*typed, *kept, *shown], typed, warn)
    if status_of(folder) is RunStatus.FINISHED:
        refuse_other_settings(asked, folder)
        _show_finished(asked, folder, typed, quiet=quiet, as_json=as_json)
        return 0
    tell_reset = partial(_tell_reset, quiet=quiet, as_json=as_json)
    with err.status("preparing the model and the data ..."):
        trainer = open_trainer(asked, folder, runs, again=again, on_reset=tell_reset)
    if trainer.world.is_main:
        _tell_beforehand(trainer, asked, quiet=quiet, as_json=as_json)
    command = shlex.join(["burnish", "train", *typed, *kept])
    try:
        status = play(trainer, view_for(trainer, quiet=quiet, as_json=as_json))
    except KeyboardInterrupt:
        done = interrupted_after(trainer)
        complain(f"interrupted {done}; the same command continues it: {command}")
        return 130
    return 3 if status == "stopped" else 0


def _tell_beforehand(trainer: Trainer, asked: Asked, *, quiet: bool, as_json: bool) -> None:
    from burnish.cli.judge_session import print_judge_calls
    from burnish.training.validate import idle_components, missing_components

    config = asked.resolved.value
    for line in (*idle_components(config), *missing_components(config)):
        warn(line)
    if not quiet:
        print_judge_calls(trainer.config, trainer.tasks.sample(1), asked.root, as_json=as_json)


def _show_finished(
    asked: Asked, folder: Path, words: Sequence[str], *, quiet: bool, as_json: bool
) -> None:
    with RunStore.open(folder, read_only=True) as store:
        result = store.summary().result
        edited = edited_files(asked, store.about)
    before, after = result.get("before"), result.get("after")
    if as_json:
        emit_json({"event": "already_finished", "folder": folder, "edited": edited, **result})
        return
    command = shlex.join(["burnish", "train", *words, "--again"])
    say(f"run '{folder.name}' is finished already; nothing to do.")
    if edited:
        warn(
            f"{', '.join(edited)} differs now from what it was trained with; --again trains a new run."
        )
    if before and after:
        say(f"held out  {interval(before)} -> {interval(after)}  (95 % intervals)")
    if not quiet:
        say(f"start it again: {command}    look at it: burnish show {folder}")


def _tell_reset(folder: Path, began: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        emit_json({"event": "reset", "folder": folder, "began": began})
    elif not quiet:
        say(
            f"run '{folder.name}' was started {began} and has no finished step; it is reset and "
            "started again in its folder."
        )


def replay(
    folder: Annotated[
        Path, Argument(metavar="CRASH_FOLDER", help="runs/NAME/crash/step-N of a run.")
    ],
) -> int:
    """Run the step that a guard stopped once more, and arrive at the same line.

    \b
      burnish replay runs/grpo-1f3a/crash/step-000012
    """
    say(import_training().replay(folder))
    return 0
