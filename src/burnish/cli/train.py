"""`burnish train`: start, continue or show a run."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.console import complain, emit_json, err, interval, out, say, warn
from burnish.cli.needs import import_training
from burnish.cli.recipes import Asked, resolve
from burnish.cli.shared_options import Words
from burnish.errors import BurnishError, RunChanged, StoreError, UserError
from burnish.store import Manifest, RunStatus, RunStore, manifest


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
    settings or data changed since is reset.

    \b
      burnish train                       the quick start
      burnish train dapo                  a shipped recipe
      burnish train my.toml steps=200     your own file, one setting changed
      burnish train grpo optimiser.learning_rate=2e-6 rewards.0.weight=2
      burnish train grpo --print-config   every setting and its origin
    """
    from burnish.config import render

    typed = words or []
    asked = resolve(typed)
    if print_config:
        out.file.write(render(asked.resolved).rstrip("\n") + "\n")
        return 0
    folder = choose_folder(asked, runs, again=again)
    if _status(folder) is RunStatus.FINISHED:
        _refuse_other_settings(asked, folder)
        _show_finished(asked, folder, typed, quiet=quiet, as_json=as_json)
        return 0
    trainer = _build(asked, folder, runs, again=again, quiet=quiet, as_json=as_json)
    if trainer.world.is_main:
        _warn_of_idle_components(asked)
    kept = ["--runs", str(runs)] if runs else []
    kept += ["--again"] if again else []
    command = shlex.join(["burnish", "train", *typed, *kept])
    return _run(trainer, command, quiet=quiet, as_json=as_json)


def choose_folder(
    asked: Asked, runs: Path | None = None, *, again: bool = False, passed: Collection[Path] = ()
) -> Path:
    """The run's folder: by its own name, or after the recipe and the config's hash.

    With `--again`, finished runs and those in `passed` are passed over: name-2, name-3 and so on.
    """
    config = asked.resolved.value
    home = runs or Path(config.run.folder)
    name = config.run.name or _own_name(asked, home)
    if not again:
        return home / name
    turn = 1
    while (folder := home / _numbered(name, turn)) in passed or (
        _status(folder) is RunStatus.FINISHED
    ):
        turn += 1
    return folder


def _own_name(asked: Asked, home: Path) -> str:
    """The recipe and the config's hash; where that is none yet, a run of the same settings.

    A newer burnish has settings that an older run does not know, and so another hash.
    """
    from burnish.config import FREE

    name = f"{asked.recipe.stem}-{asked.resolved.digest(FREE)[:8]}"
    if len(name.encode()) > 200:
        raise UserError(
            f"the name of the recipe '{name[:40]}...' is too long for a folder; set run.name"
        )
    if (home / name / manifest.FILE).is_file():
        return name
    found = []
    for file in home.glob(f"{glob.escape(asked.recipe.stem)}-????????/{manifest.FILE}"):
        try:
            about = manifest.read(file.parent)
        except StoreError:
            continue  # damaged, or another program's: `burnish runs` tells
        if about.config_hash and not about.config.get("run.name") and not _changes(asked, about):
            found.append((about.created, file.parent.name))
    return max(found)[1] if found else name


def _changes(asked: Asked, about: Manifest) -> list[str]:
    """The settings that differ from those that a run was started with."""
    from burnish.config import FREE

    values = {k: v for k, v in about.config.items() if not k.startswith("files.")}
    return asked.resolved.changes(values, FREE)


def _numbered(name: str, turn: int) -> str:
    return name if turn == 1 else f"{name}-{turn}"


def _status(folder: Path) -> RunStatus | None:
    """Where the run stands; None where there is none yet."""
    if not (folder / "config.json").is_file():
        return None
    with RunStore.open(folder, read_only=True) as store:
        return store.status()


def _refuse_other_settings(asked: Asked, folder: Path) -> None:
    """A finished run of the same name but with other settings is not what was asked for."""
    with RunStore.open(folder, read_only=True) as store:
        about = store.about
    if about.config_hash and (changes := _changes(asked, about)):
        raise UserError(
            f"run '{folder.name}' is finished and had another config ({'; '.join(changes)}); "
            "choose another run.name, or start a new run with --again"
        )


def _show_finished(
    asked: Asked, folder: Path, words: Sequence[str], *, quiet: bool, as_json: bool
) -> None:
    with RunStore.open(folder, read_only=True) as store:
        result = store.summary().result
        edited = _edited(asked, store.about)
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


def _edited(asked: Asked, about: Manifest) -> list[str]:
    """Names of the files with own functions that are not what they were when the run began."""
    if not any(key.startswith("files.") and key.endswith(".py") for key in about.config):
        return []
    import_training()
    from burnish.config import rooted
    from burnish.training.validate import code_digests

    now = code_digests(rooted(asked.resolved.value, asked.root))
    return [k.removeprefix("files.") for k, v in now.items() if about.config.get(k, v) != v]


def _build(
    asked: Asked, folder: Path, runs: Path | None, *, again: bool, quiet: bool, as_json: bool
) -> Any:
    """The trainer of a folder; a run that began with other settings is reset, or left as it is."""
    training = import_training()
    passed: list[Path] = []
    while True:
        try:
            with err.status("preparing the model and the data ..."):
                return training.build(asked.resolved, folder, root=asked.root, recipe=asked.typed)
        except RunChanged as error:
            if again:
                passed.append(folder)
                folder = choose_folder(asked, runs, again=True, passed=passed)
                continue
            if not training.reset(folder):
                raise
            if as_json:
                emit_json({"event": "reset", "folder": folder, "began": error.began})
            elif not quiet:
                say(
                    f"run '{folder.name}' was started {error.began} and has no finished step; it "
                    "is reset and started again in its folder."
                )


def _run(trainer: Any, command: str, *, quiet: bool, as_json: bool) -> int:
    """Train and show it; the exit code. `command` continues a run that a person stops."""
    from burnish.cli.progress import view_for

    view = view_for(trainer, quiet=quiet, as_json=as_json)
    code = 0
    try:
        with view:
            for event in trainer.run():
                view.show(event)
                code = 3 if getattr(event, "status", "") == "stopped" else code
    except KeyboardInterrupt:
        _note_interrupt(trainer)
        stage = f" of stage '{trainer.stage.name}'" if trainer.stage.name else ""
        done = f"after {trainer.state.step} of {trainer.stage.steps} steps{stage}"
        complain(f"interrupted {done}; the same command continues it: {command}")
        return 130
    finally:
        trainer.store.close()
    return code


def _warn_of_idle_components(asked: Asked) -> None:
    from burnish.training.validate import idle_components, missing_components

    config = asked.resolved.value
    for line in (*idle_components(config), *missing_components(config)):
        warn(line)


def _note_interrupt(trainer: Any) -> None:
    """Let the run's listing say that a person stopped it."""
    try:
        trainer.store.finish("stopped", {"reason": "interrupted with Ctrl-C"})
    except BurnishError as error:
        complain(str(error))
