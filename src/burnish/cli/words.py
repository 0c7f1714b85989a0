"""From the words of a command line to a resolved config."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from burnish.cli.recipes import QUICK_START, all_recipes, find_recipe
from burnish.config import Config, Resolved, load
from burnish.config.paths import typed_value
from burnish.errors import UserError


class Asked(NamedTuple):
    """What the words mean."""

    recipe: Path
    resolved: Resolved[Config]

    @property
    def root(self) -> Path:
        """Where relative paths of the recipe file start."""
        return self.recipe.resolve().parent

    @property
    def typed(self) -> str:
        """What to type for the recipe: a shipped one's name, or the file's path as it was given."""
        is_shipped = all_recipes().get(self.recipe.stem) == self.recipe
        return self.recipe.stem if is_shipped else str(self.recipe)


def resolve(words: Sequence[str]) -> Asked:
    """The recipe that the first word names (the quick start where none does) and its settings."""
    named = bool(words) and ("=" not in words[0] or words[0].endswith(".toml"))
    recipe = find_recipe(words[0] if named else QUICK_START)
    overrides = list(words[1:] if named else words)
    for word in overrides:
        if "=" not in word:
            raise UserError(
                f"'{word}' is not a setting; expected key=value after the recipe, such as steps=20."
            )
    # A path typed by a person starts at their folder, not at the recipe's.
    from_here = partial(typed_value, root=Path.cwd())
    return Asked(recipe, load(Config, recipe, overrides, from_here))
