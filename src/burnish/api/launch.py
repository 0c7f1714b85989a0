"""Which folder a config's run has, and how it is begun, continued, reset or left as it is.

The command line and `burnish.train` both go through `choose_folder`, `open_trainer` and `play`.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from burnish.api.needs import import_training
from burnish.errors import RunChanged, StoreError, UserError
from burnish.step_warnings import RAISED, WARNING, raised_in, watch_of
from burnish.store import Manifest, RunStatus, RunStore, manifest
from burnish.store.run import DATA

if TYPE_CHECKING:
    from burnish.config.recipes import Asked


class View(AbstractContextManager["View"], Protocol):
    """Shows the events of a run; left when the run ends, however it does."""

    def show(self, event: Any) -> None: ...


class Progress(Protocol):
    """How runs are shown to the person who starts them."""

    def view(self, trainer: Any) -> View:
        """What shows the events of this run."""
        ...

    def say(self, line: str) -> None:
        """Show one line."""
        ...


progress: Progress | None = None
"""What `burnish.train(show=True)` shows runs with. The rooms to the right know how to draw and print:
`import burnish` sets it to the terminal's or the notebook's."""


def choose_folder(
    asked: Asked, runs: Path | None = None, *, again: bool = False, passed: Collection[Path] = ()
) -> Path:
    """The run's folder: by its own name, or after the recipe and the config's hash.

    With `again`, finished runs and those in `passed` are passed over: name-2, name-3 and so on.
    """
    config = asked.resolved.value
    home = runs or Path(config.run.folder)
    name = config.run.name or _own_name(asked, home)
    if not again:
        return home / name
    turn = 1
    folder = home / name
    while folder in passed or status_of(folder) is RunStatus.FINISHED:
        turn += 1
        folder = home / f"{name}-{turn}"
    return folder


def _own_name(asked: Asked, home: Path) -> str:
    """The recipe and the config's hash, or a run of the same settings: a newer burnish has settings
    that an older run does not know, and so another hash."""
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
    from burnish.config.schema import free_keys

    values = {k: v for k, v in about.config.items() if not k.startswith("files.")}
    return asked.resolved.changes(values, free_keys(asked.resolved.value))


def status_of(folder: Path) -> RunStatus | None:
    """Where the run stands; None where there is none yet."""
    if not (folder / manifest.FILE).is_file():
        return None
    with RunStore.open(folder, read_only=True) as store:
        return store.status()


def refuse_other_settings(asked: Asked, folder: Path) -> None:
    """A finished run of the same name but with other settings is not what was asked for."""
    with RunStore.open(folder, read_only=True) as store:
        about = store.about
    if about.config_hash and (changes := _changes(asked, about)):
        raise UserError(
            f"run '{folder.name}' is finished and had another config ({'; '.join(changes)}); choose "
            "another run.name, or start a new run with --again"
        )


def edited_files(asked: Asked, about: Manifest) -> list[str]:
    """Names of the files with own functions that are not what they were when the run began."""
    if not any(key.startswith("files.") and key.endswith(".py") for key in about.config):
        return []
    import_training()
    from burnish.config import rooted
    from burnish.training.validate import code_digests

    now = code_digests(rooted(asked.resolved.value, asked.root))
    return [k.removeprefix("files.") for k, v in now.items() if about.config.get(k, v) != v]


def open_trainer(
    asked: Asked,
    folder: Path,
    runs: Path | None = None,
    *,
    again: bool = False,
    on_reset: Callable[[Path, str], object] | None = None,
) -> Any:
    """The trainer of a folder; a run that began with other settings is reset, or left as it is.

    `on_reset` is told the folder of a run that is reset and how it was begun.
    """
    from burnish.api.cluster import scored_by

    training, scored = import_training(), scored_by(asked)
    passed: list[Path] = []
    while True:
        try:
            return training.build(
                asked.resolved, folder, root=asked.root, recipe=asked.typed, scored_by=scored
            )
        except RunChanged as error:
            if again:
                passed.append(folder)
                folder = choose_folder(asked, runs, again=True, passed=passed)
                continue
            if not training.reset(folder):
                raise
            if on_reset is not None:
                on_reset(folder, error.began)


def play(trainer: Any, view: View, stop: Callable[[], bool] = lambda: False) -> str:
    """Train and show it; how it ended: `finished` or `stopped`.

    Ctrl-C, or `stop()` after an event, ends it as KeyboardInterrupt. Whatever ends it early is
    stored with the run, and the store is closed in any case.
    """
    status = ""
    try:
        if trainer.world.is_main:  # what a person should know of the data, once for a run
            known = {event.message for event in trainer.store.events(DATA)}
            for note in trainer.tasks.notes:
                if note not in known:
                    trainer.store.append_event(DATA, note)
        keep_warnings = _warnings_kept(trainer)
        trainer.tell = view.show
        with view, closing(trainer.run()) as events:
            for event in events:
                keep_warnings(event)
                view.show(event)
                status = getattr(event, "status", status)
                if stop() and not status:
                    raise KeyboardInterrupt
    except BaseException as error:
        trainer.note_end(error)
        raise
    finally:
        trainer.store.close()
    return status


def _warnings_kept(trainer: Any) -> Callable[[Any], None]:
    """Stores what goes wrong in a step, each warning once: a step may be made again after a crash."""
    from burnish.training.events import Finished, StepDone

    watch = watch_of(trainer.config, trainer.store.about.origins)
    known = {(event.step, event.message) for event in trainer.store.events(WARNING)}

    def keep(event: Any) -> None:
        if not trainer.world.is_main:
            return
        if isinstance(event, Finished) and (raised := raised_in(trainer.store)):
            trainer.store.append_event(WARNING, raised, {RAISED: True})
        if not isinstance(event, StepDone):
            return
        for text in watch.texts(event):
            where = f"stage '{event.stage}', step {event.step + 1}: " if event.stage else ""
            found = (None if event.stage else event.step, f"{where}{text}")
            if found not in known:
                known.add(found)
                trainer.store.append_event(WARNING, found[1], step=found[0])

    return keep


def interrupted_after(trainer: Any) -> str:
    """How far an interrupted run came: `after 3 of 20 steps`, and what of it is to be done again.

    Where a step samples its answers these are in the store, and its update alone is done again.
    """
    stage = f" of stage '{trainer.stage.name}'" if trainer.stage.name else ""
    told = f"after {trainer.state.step} of {trainer.stage.steps} steps{stage}"
    lost = trainer.state.step - trainer.saved_step
    if not lost or trainer.stage.algorithm.samples_prompts:
        return told
    return f"{told} ({lost} since its last checkpoint, which are done again)"
