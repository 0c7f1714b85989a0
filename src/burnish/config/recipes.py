"""Recipes: where the shipped ones are, what their headers say, and how words and Python name one.

The first comment lines of a recipe: the command that runs it, a sentence, perhaps `paper: ...`.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.config.given import COMMAND_LINE, PYTHON
from burnish.errors import UserError, did_you_mean
from burnish.texts import read_text, read_toml

if TYPE_CHECKING:
    from burnish.config import Config, Resolved


QUICK_START = "quickstart"
OPEN = "left open"
"""Begins the origin of a setting of a shipped recipe that does not fit another task."""
IN_PYTHON = "python"
"""Names the runs of a config that no recipe file began."""
NO_TRIAL = "no trial on tiny"
"""A comment line of a recipe that the tiny model cannot run."""
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
    kind: str = "policy"
    """Its kind of training."""
    trial: str = ""
    """A command that runs three steps on a small random model; empty where none can run it."""


class Asked(NamedTuple):
    """A recipe and its settings, as a command line or a call in Python names them."""

    recipe: Path
    resolved: Resolved[Config]

    @property
    def root(self) -> Path:
        """Where relative paths of the recipe file start; the working folder without a file."""
        return self.recipe.resolve().parent

    @property
    def typed(self) -> str:
        """What to type for the recipe: a shipped one's name, or the file's path as it was given."""
        is_shipped = all_recipes().get(self.recipe.stem) == self.recipe
        return self.recipe.stem if is_shipped else str(self.recipe)


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
    """Shipped recipes by name: `NAME.toml`, or `NAME/NAME.toml` beside the functions it uses."""
    home = recipe_folder()
    own = [path for path in home.glob("*/*.toml") if path.stem == path.parent.name]
    found = {path.stem: path for path in [*home.glob("*.toml"), *own]}
    return dict(sorted(found.items()))


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
    # A file of this folder before a shipped name: `sort.tom` is `sort.toml`.
    here = [path.name for path in Path().glob("*.toml")]
    hint = did_you_mean(word, here) or did_you_mean(word, known)
    if hint:
        raise UserError(f"no recipe '{word}'.{hint} All of them: burnish methods.")
    raise UserError(
        f"no recipe '{word}'; expected the path of a .toml file or one of {', '.join(known)}."
    )


def resolve(
    words: Sequence[str], settings: Mapping[str, Any] | None = None, label: str = "command line"
) -> Asked:
    """The recipe that the first word names (the quick start where none does) and its settings.

    `settings` are Python values, applied after the words; `label` says where words were typed.
    """
    from burnish.config import Config, load

    named = bool(words) and ("=" not in words[0] or words[0].endswith(".toml"))
    recipe = find_recipe(words[0] if named else QUICK_START)
    overrides = list(words[1:] if named else words)
    for word in overrides:
        if "=" not in word:
            raise UserError(
                f"'{word}' is not a setting; expected key=value after the recipe, such as steps=20."
            )
    resolved = load(Config, recipe, overrides, _from_here(), settings, label)
    return Asked(recipe, _fitted(resolved, recipe))


def change(asked: Asked, settings: Mapping[str, Any]) -> Asked:
    """The same recipe with some settings changed by Python values."""
    from burnish.config.loading import changed

    resolved = changed(asked.resolved, settings, _from_here())
    return asked._replace(resolved=_fitted(resolved, asked.recipe))


def _fitted(resolved: Resolved[Config], recipe: Path) -> Resolved[Config]:
    """Leave open the shipped recipe's own numbers that do not fit what was typed beside them.

    `train.canvas` is for answers, and text is never filled; `rollout.max_tokens` fits the answers to
    the recipe's task alone. A number of one's own is kept.
    """
    from msgspec.structs import replace

    from burnish.config.schema import DiffusionTrain

    if recipe not in all_recipes().values():
        return resolved
    value, flat, origins = resolved.value, resolved.flat(), dict(resolved.origins)
    own = read_toml(recipe.read_text(encoding="utf-8-sig")).get("task", {})

    def is_typed(key: str) -> bool:
        return origins.get(key, "").startswith((COMMAND_LINE, PYTHON))

    is_text = is_typed("train.on") and flat["train.on"] == "text"
    is_another = any(
        is_typed(f"task.{key}") and flat.get(f"task.{key}") != own.get(key)
        for key in ("kind", "path")
    )
    for table, key, default, is_unfit, what in (
        ("train", "canvas", DiffusionTrain().canvas, is_text, "answers"),
        ("rollout", "max_tokens", 0, is_another, "its own task"),
    ):
        place = f"{table}.{key}"
        if is_unfit and flat.get(place) and origins[place].startswith(f"{recipe}:"):
            changed = replace(getattr(value, table), **{key: default})
            value = replace(value, **{table: changed})
            origins[place] = f"{OPEN}: {recipe.name} has {flat[place]} for {what}"
    return dataclasses.replace(resolved, value=value, origins=origins)


def _from_here() -> Any:
    """A path typed by a person starts at their folder, not at the recipe's."""
    from functools import partial

    from burnish.config.paths import typed_value

    return partial(typed_value, root=Path.cwd())


def as_shipped(origins: Mapping[str, str], keys: Sequence[str]) -> bool:
    """Whether all these settings of a run have the values that a shipped recipe gives them."""
    home = f"{recipe_folder()}{os.sep}"
    return all(origins.get(key, "").startswith(home) for key in keys)


def read_card(path: Path) -> RecipeCard:
    """The header and the policy table of a recipe file."""
    text = read_text(path)
    try:
        table = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: cannot read the recipe: {error}") from error
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        header.append(line.lstrip("#").strip())
    papers = [line[6:].strip() for line in header if line.lower().startswith("paper:")]
    has_trial = NO_TRIAL not in header
    plain = [
        line
        for line in header
        if line and not line.lower().startswith("paper:") and line != NO_TRIAL
    ]
    command = next((line for line in plain if line.startswith("burnish ")), "")
    described = [line for line in plain if line != command]
    return RecipeCard(
        name=path.stem,
        path=path,
        command=command or f"burnish train {path.stem}",
        description=" ".join(described),
        paper="; ".join(papers),
        policy=table.get("policy", {}),
        kind=_kind(table.get("train")),
        trial=_trial(path.stem, table.get("model")) if has_trial else "",
    )


def _trial(name: str, model: Any) -> str:
    """Three steps on a model that is made in a moment."""
    path = model.get("path") if isinstance(model, Mapping) else model
    if path == "new":
        return f"burnish train {name} steps=3"
    kind, colon, _ = path.partition(":") if isinstance(path, str) else ("", "", "")
    prefix = f"{kind}:" if colon and kind in ("diffusion", "visual") else ""
    return f"burnish train {name} model={prefix}tiny steps=3"


def _kind(train: Any) -> str:
    kind = train.get("kind") if isinstance(train, Mapping) else train
    return kind if isinstance(kind, str) else "policy"


def _nearby(path: Path) -> str:
    if hint := did_you_mean(path.name, [p.name for p in path.parent.glob("*.toml")]):
        return hint
    shipped = all_recipes()
    if path.stem in shipped:
        return f" There is a shipped recipe of that name: burnish train {path.stem}."
    return f" Shipped recipes: {', '.join(shipped)}."
