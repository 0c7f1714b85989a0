"""`burnish.train`: from rows, functions and a recipe to a trained model, in one call.

The same call continues an interrupted run where it was, and gives back a finished one.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from burnish.api import launch
from burnish.api.config import A_RECIPE, Config
from burnish.api.launch import (
    choose_folder,
    interrupted_after,
    open_trainer,
    play,
    refuse_other_settings,
    status_of,
)
from burnish.api.run import Run
from burnish.api.settings import as_settings
from burnish.arguments import as_flag, as_path, as_text, refused
from burnish.config.given import PYTHON
from burnish.config.recipes import Asked, change, resolve
from burnish.errors import UserError, python_words
from burnish.store import RunStatus

if TYPE_CHECKING:
    from burnish.training.events import Event

RECIPES = {"policy": "grpo", "function": "grpo"} | {
    kind: kind
    for kind in ("sft", "dpo", "reward_model", "process_reward_model", "distil", "pretrain")
}
"""The recipe of each kind of training where none is named."""


def train(
    recipe: str | Path | Config | None = None,
    *words: str,
    model: str | Path | None = None,
    data: Any = None,
    rewards: Any = None,
    steps: int | None = None,
    columns: Mapping[str, str] | None = None,
    held_out: Any = None,
    seed: int | None = None,
    name: str | None = None,
    runs: str | Path | None = None,
    again: bool = False,
    show: bool = True,
    on_event: Callable[[Event], object] | None = None,
    **settings: Any,
) -> Run:
    """Train a model and return its run: samples, metrics, curves, weights and the reason of a reward.

    >>> rows = [{"prompt": f"Write the digit {n}.", "answer": str(n)} for n in range(10)]
    >>> def has_digit(text: str, answer: str) -> float:
    ...     return float(answer in text)
    >>> run = train("grpo", model="tiny", data=rows, rewards=[has_digit], steps=2, show=False)
    >>> run.status, len(run.samples(split="train"))
    ('finished', 128)

    - `recipe`: a shipped recipe, a file, or a `Config`; by default that of `train["kind"]`, else
      grpo; the quick start where nothing is given.
    - `words`: `key=value` as on the command line.
    - `model`: `smollm2`, `tiny`, or a Hugging Face folder.
    - `data`: a list of dicts, a `datasets.Dataset`, a data frame, a file, a task's name or config,
      or a function that makes tasks.
    - `columns`: which column is the prompt and which are fields, where their names do not tell:
      `{"prompt": "Q: {question}", "answer": "solution"}`.
    - `rewards`: functions, scorers, names such as `numeric`, tables, or pairs with a weight.
    - `held_out`: a share (0.1 by default), rows or a file that are never trained on.
    - `seed`, `name`, `runs`: the run's seed, its name, and the folder where runs live.
    - `again`: a new run beside one that is finished or began otherwise.
    - `show`: live progress. `on_event`: called with each event of `burnish.training.events`.
    - `settings`: any other setting by its key, with dicts for tables:
      `optimiser={"learning_rate": 1e-5}`, `train={"kind": "sft"}`.

    Ctrl-C stops cleanly; the same call continues.
    """
    given = {"model": model, "data": data, "rewards": rewards, "steps": steps, "columns": columns}
    given |= {"held_out": held_out, "seed": seed, "name": name, **settings}
    with python_words():
        call = _called(recipe, words, given, (runs, again, show, on_event))
        if call.is_finished():
            return call.run
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return call.here()
        worker = _Worker(call)
        try:
            while worker.is_open:
                worker.handle(worker.items.get())
        except BaseException as error:
            worker.stop()
            if isinstance(error, KeyboardInterrupt) and worker.trainer is not None:
                raise KeyboardInterrupt(_how_to_continue(worker.trainer)) from None
            raise
        return call.ended()


async def train_async(
    recipe: str | Path | Config | None = None, *words: str, **arguments: Any
) -> Run:
    """`train` for callers with an event loop of their own, which stays free meanwhile.

    Takes the arguments of `train`. Cancelling it stops the run as Ctrl-C does.

    >>> import asyncio
    >>> run = asyncio.run(train_async("tiny", "steps=1", evaluation={"prompts": 4}, show=False))
    >>> run.status
    'finished'
    """
    defaults = {"runs": None, "again": False, "show": True, "on_event": None}
    how = tuple(arguments.pop(name, default) for name, default in defaults.items())
    with python_words():
        call = _called(recipe, words, arguments, how)
        if call.is_finished():
            return call.run
        worker = _Worker(call)
        try:
            while worker.is_open:
                next_item = worker.items.get
                worker.handle(await anyio.to_thread.run_sync(next_item, abandon_on_cancel=True))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(worker.stop)
            raise
        return call.ended()


def _called(recipe: Any, words: Sequence[str], given: Mapping[str, Any], how: Any) -> _Call:
    """`how`: runs, again, show, on_event."""
    runs, *others = how
    home = None if runs is None else as_path("runs", runs)
    return _Call(_asked(recipe, words, given), home, *others)


def _asked(
    recipe: str | Path | Config | None, words: Sequence[str], given: Mapping[str, Any]
) -> Asked:
    settings = as_settings(given)
    words = [as_text("words", word) for word in words]
    if isinstance(recipe, Config):
        if words:
            raise UserError(
                f"'{words[0]}' is given beside a Config; expected settings by name, such as steps=5."
            )
        return change(recipe.asked, settings) if settings else recipe.asked
    if recipe is None and {"task", "rewards", "train"} & settings.keys():
        kind = settings.get("train", {})
        if not isinstance(kind, str):
            kind = kind.get("kind", "policy") if isinstance(kind, Mapping) else "policy"
        if kind not in RECIPES:
            raise UserError(
                f"train.kind '{kind}' has no recipe that it starts from by itself; name one, such "
                f"as burnish.train('sft', train={{'kind': '{kind}'}}, ...)."
            )
        recipe = RECIPES[kind]
    named = [] if recipe is None else [str(as_path("recipe", recipe, A_RECIPE))]
    return resolve([*named, *words], settings, PYTHON)


@dataclass
class _Call:
    asked: Asked
    runs: Path | None
    again: bool
    show: bool
    on_event: Callable[[Event], object] | None

    def __post_init__(self) -> None:
        as_flag("again", self.again)
        as_flag("show", self.show)
        if self.on_event is not None and not callable(self.on_event):
            raise refused("on_event", self.on_event, "a function")
        if self.asked.resolved.value.cluster.kind in ("local", "ray"):
            raise refused(
                "cluster", "parts to start", "none: the command `burnish train` starts them"
            )
        self.folder = choose_folder(self.asked, self.runs, again=self.again).absolute()

    @property
    def run(self) -> Run:
        return Run(self.folder)

    def is_finished(self) -> bool:
        if status_of(self.folder) is not RunStatus.FINISHED:
            return False
        refuse_other_settings(self.asked, self.folder)
        if self.show and launch.progress is not None:
            launch.progress.say(
                f"run '{self.folder.name}' is finished already; a new one: again=True."
            )
        return True

    def open(self) -> Any:
        """The trainer, in the thread that is to run it: a store belongs to one thread."""
        trainer = open_trainer(self.asked, self.folder, self.runs, again=self.again)
        self.folder = trainer.folder
        return trainer

    def view(self, trainer: Any) -> Any:
        """What shows the run to the caller."""
        door = launch.progress
        shown = door.view(trainer) if self.show and door is not None else None
        return _Shown(shown, self.on_event)

    def here(self) -> Run:
        trainer = self.open()
        try:
            play(trainer, self.view(trainer))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_continue(trainer)) from None
        return self.ended()

    def ended(self) -> Run:
        """The run; one that a guard stopped says why, also where no progress is shown."""
        run = self.run
        end = run.end
        if end.status is RunStatus.STOPPED:
            reason = end.reason or "no reason is stored"
            warnings.warn(f"run '{run.name}' stopped: {reason}", RuntimeWarning, stacklevel=4)
        return run


def _how_to_continue(trainer: Any) -> str:
    return f"interrupted {interrupted_after(trainer)}; the same call continues it"


class _Shown:
    """A view, and the caller's own function, fed with the same events."""

    def __init__(self, view: Any, on_event: Callable[[Event], object] | None) -> None:
        self.inner, self.on_event = view, on_event

    def __enter__(self) -> _Shown:
        if self.inner is not None:
            self.inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.inner is not None:
            self.inner.__exit__(*error)

    def show(self, event: Event) -> None:
        if self.inner is not None:
            self.inner.show(event)
        if self.on_event is not None:
            self.on_event(event)


# --- inside a running event loop: a thread trains, the caller's thread shows


class _Worker:
    """Trains in a thread of its own; the caller takes what it reports, one item after another."""

    def __init__(self, call: _Call) -> None:
        self.call = call
        self.items: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.view: _Shown | None = None
        self.is_open = True
        self.wants_stop = threading.Event()
        self.trainer: Any = None
        self.thread = threading.Thread(target=self._work, name="burnish-train", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self.trainer = self.call.open()
            self.items.put(self._begin)
            pass_on = _Shown(None, lambda event: self.items.put(partial(self.show, event)))
            play(self.trainer, pass_on, self.wants_stop.is_set)
            self.items.put(self._end)
        except BaseException as error:  # boundary: the caller's thread raises it
            if isinstance(error, KeyboardInterrupt) and self.trainer is not None:
                error = KeyboardInterrupt(_how_to_continue(self.trainer))
            self.items.put(partial(_raise, error))

    def handle(self, item: Callable[[], object]) -> None:
        """Do what the item says, in the caller's thread."""
        try:
            item()
        except BaseException:
            self._end()
            raise

    def _begin(self) -> None:
        self.view = self.call.view(self.trainer)
        self.view.__enter__()

    def show(self, event: Event) -> None:
        if self.view is not None:
            self.view.show(event)

    def _end(self) -> None:
        self.is_open = False
        view, self.view = self.view, None
        if view is not None:
            view.__exit__(None, None, None)

    def stop(self) -> None:
        """Stop the run as Ctrl-C would, and wait until its thread has closed everything."""
        self.wants_stop.set()
        while self.thread.is_alive():
            if self.trainer is not None:
                self.trainer.loop.interrupt()
            self.thread.join(timeout=0.1)
        self._end()


def _raise(error: BaseException) -> None:
    raise error
