"""`burnish train`: start, continue or show a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.cli.console import complain, emit_json, err, interval, out, say
from burnish.cli.needs import training_room
from burnish.cli.words import Asked, resolve
from burnish.config import FREE, render
from burnish.errors import BurnishError, UserError
from burnish.store import RunStatus, RunStore


class Options(NamedTuple):
    """The flags of `burnish train`."""

    print_config: bool = False
    again: bool = False
    quiet: bool = False
    as_json: bool = False
    runs: Path | None = None


def train(words: Sequence[str], options: Options) -> int:
    """Train, or say why not; the exit code."""
    asked = resolve(words)
    if options.print_config:
        out.file.write(render(asked.resolved).rstrip("\n") + "\n")
        return 0
    folder = choose_folder(asked, options)
    if _status(folder) is RunStatus.FINISHED:
        _refuse_other_settings(asked, folder)
        _show_finished(folder, words, options)
        return 0
    return _run(asked, folder, words, options)


def choose_folder(asked: Asked, options: Options) -> Path:
    """The run's folder: by its own name, or after the recipe and the config's hash.

    With `--again`, finished runs are passed over: name-2, name-3 and so on.
    """
    config = asked.resolved.value
    home = options.runs or Path(config.run.folder)
    name = config.run.name or f"{asked.recipe.stem}-{asked.resolved.digest(FREE)[:8]}"
    if not options.again:
        return home / name
    turn = 1
    while _status(home / _numbered(name, turn)) is RunStatus.FINISHED:
        turn += 1
    return home / _numbered(name, turn)


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
    values = {k: v for k, v in about.config.items() if not k.startswith("files.")}
    if about.config_hash and (changes := asked.resolved.changes(values, FREE)):
        raise UserError(
            f"run '{folder.name}' is finished and had another config ({'; '.join(changes)}); "
            "choose another run.name"
        )


def _show_finished(folder: Path, words: Sequence[str], options: Options) -> None:
    with RunStore.open(folder, read_only=True) as store:
        result = store.summary().result
    before, after = result.get("before"), result.get("after")
    if options.as_json:
        emit_json({"event": "already_finished", "folder": folder, **result})
        return
    command = shlex.join(["burnish", "train", *words, "--again"])
    say(f"run '{folder.name}' is finished already; nothing to do.")
    if before and after:
        say(f"held out  {interval(before)} -> {interval(after)}  (95 % intervals)")
    if not options.quiet:
        say(f"start it again: {command}    look at it: burnish show {folder}")


def _run(asked: Asked, folder: Path, words: Sequence[str], options: Options) -> int:
    from burnish.cli.progress import view_for

    room = training_room()
    with err.status("preparing the model and the data ..."):
        trainer = room.build(asked.resolved, folder, root=asked.root, recipe=asked.recipe.stem)
    view = view_for(trainer, quiet=options.quiet, as_json=options.as_json)
    code = 0
    try:
        with view:
            for event in trainer.run():
                view.show(event)
                code = 3 if getattr(event, "status", "") == "stopped" else code
    except KeyboardInterrupt:
        _note_interrupt(trainer)
        again = shlex.join(["burnish", "train", *words, *_kept_flags(options)])
        done = f"after {trainer.state.step} of {trainer.config.steps} steps"
        complain(f"interrupted {done}; the same command continues it: {again}")
        return 130
    finally:
        trainer.store.close()
    return code


def _kept_flags(options: Options) -> list[str]:
    flags = ["--runs", str(options.runs)] if options.runs else []
    return [*flags, *(["--again"] if options.again else [])]


def _note_interrupt(trainer: Any) -> None:
    """Let the run's listing say that a person stopped it."""
    try:
        trainer.store.finish("stopped", {"reason": "interrupted with Ctrl-C"})
    except BurnishError as error:
        complain(str(error))
