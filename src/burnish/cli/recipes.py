"""The shipped recipes: where they lie and what their headers say.

A recipe is a TOML file whose first comment lines are, in this order: the command that runs it,
a sentence that says what it is, and, where there is one, `paper: ...`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import UserError, did_you_mean
from burnish.texts import read_toml

QUICK_START = "quickstart"
PACKAGE = Path(__file__).resolve().parents[1]


class RecipeCard(NamedTuple):
    """What a recipe file says of itself."""

    name: str
    path: Path
    command: str
    description: str
    paper: str
    policy: dict[str, Any]
    """Its `[policy]` table: the pieces it names."""


def recipe_folder() -> Path:
    """`burnish/_recipes` of an installed package, or `recipes/` of a checkout."""
    for folder in (PACKAGE / "_recipes", PACKAGE.parents[1] / "recipes"):
        if folder.is_dir():
            return folder
    raise UserError(
        "the shipped recipes are missing from this installation; install burnish again or give "
        "the path of a .toml file."
    )


def all_recipes() -> dict[str, Path]:
    """Shipped recipes by name."""
    return {path.stem: path for path in sorted(recipe_folder().glob("*.toml"))}


def find_recipe(word: str) -> Path:
    """The recipe file that a path or the name of a shipped recipe means."""
    path = Path(word)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise UserError(f"no recipe file {word}.{_nearby(path)}")
    known = all_recipes()
    if word in known:
        return known[word]
    if path.is_file():
        return path
    hint = did_you_mean(word, known)
    raise UserError(
        f"no recipe '{word}'; expected the path of a .toml file or one of {', '.join(known)}.{hint}"
    )


def read_card(path: Path) -> RecipeCard:
    """The header and the policy table of a recipe file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = read_toml(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: cannot read the recipe: {error}") from error
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        header.append(line.lstrip("#").strip())
    papers = [line[6:].strip() for line in header if line.lower().startswith("paper:")]
    plain = [line for line in header if line and not line.lower().startswith("paper:")]
    command = next((line for line in plain if line.startswith("burnish ")), "")
    described = [line for line in plain if line != command]
    return RecipeCard(
        name=path.stem,
        path=path,
        command=command or f"burnish train {path.stem}",
        description=" ".join(described),
        paper="; ".join(papers),
        policy=table.get("policy", {}),
    )


def _nearby(path: Path) -> str:
    """A hint: the nearest file of the same folder, or the nearest shipped name."""
    try:
        beside = [p.name for p in path.parent.glob("*.toml")]
    except OSError:
        beside = []
    if hint := did_you_mean(path.name, beside):
        return hint
    shipped = all_recipes()
    if path.stem in shipped:
        return f" There is a shipped recipe of that name: burnish train {path.stem}."
    return f" Shipped recipes: {', '.join(shipped)}."
