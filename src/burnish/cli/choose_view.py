"""Which view a training run gets: a notebook's, a live table, plain lines, JSON lines or nothing."""

from __future__ import annotations

import sys
from typing import Any

from burnish.cli.console import out
from burnish.cli.progress import JsonView, LineView, LiveView, QuietView, View
from burnish.step_warnings import watch_of


def view_for(trainer: Any, *, quiet: bool, as_json: bool) -> View:
    """The view that fits the flags and the terminal; only the main process shows anything."""
    if not trainer.world.is_main:
        return View()
    if as_json:
        return JsonView()
    if quiet:
        return QuietView()
    kind = _kind_of_view()
    config = trainer.config
    return kind(
        tuple(trainer.tasks.notes),
        watch_of(config, trainer.store.about.origins),
        config.evaluation.part,
    )


def _kind_of_view() -> type[LineView]:
    if "IPython" in sys.modules:
        from burnish.cli.notebook_view import NotebookView, in_notebook

        if in_notebook():
            return NotebookView
    return LiveView if out.is_terminal else LineView
