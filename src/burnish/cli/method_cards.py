"""Cards of the methods: the page that explains a recipe, and what it was measured to do.

A card is `docs/methods/<recipe>.md`. Between its lines `<!-- figures -->` and `<!-- /figures -->`
a line that begins with `Effect:` says in one sentence what the method did to a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from burnish.cli.recipes import PACKAGE
from burnish.errors import UserError

FIGURES, END_OF_FIGURES = "<!-- figures -->", "<!-- /figures -->"
EFFECT = "Effect:"


class MethodCard(NamedTuple):
    """Where a method is explained."""

    path: Path
    effect: str
    """One sentence; empty where nothing has been measured yet."""


def card_folder() -> Path | None:
    """`burnish/_methods` of an installed package, or `docs/methods/` of a checkout."""
    folders = (PACKAGE / "_methods", PACKAGE.parents[1] / "docs" / "methods")
    return next((folder for folder in folders if folder.is_dir()), None)


def find_card(recipe: str) -> MethodCard | None:
    """The card of a recipe, where it has one."""
    folder = card_folder()
    path = folder / f"{recipe}.md" if folder else None
    if path is None or not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the method's card: {error}") from error
    return MethodCard(path, _effect(text))


def shown_path(path: Path) -> str:
    """The path as somebody in this folder would type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _effect(text: str) -> str:
    _, _, behind = text.partition(FIGURES)
    figures, closed, _ = behind.partition(END_OF_FIGURES)
    lines = figures.splitlines() if closed else []
    found = (line for line in lines if line.startswith(EFFECT))
    return next(found, EFFECT).removeprefix(EFFECT).strip()
