"""From the words of a command line to a resolved config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from burnish.cli.recipes import QUICK_START, find_recipe
from burnish.config import Config, Resolved, load
from burnish.config.paths import absolute
from burnish.errors import UserError
from burnish.lm.base import SHIPPED


class Asked(NamedTuple):
    """What the words mean."""

    recipe: Path
    resolved: Resolved[Config]

    @property
    def root(self) -> Path:
        """Where relative paths of the recipe file start."""
        return self.recipe.resolve().parent


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
    return Asked(recipe, load(Config, recipe, [_from_here(word) for word in overrides]))


def _from_here(word: str) -> str:
    """A data or function path typed by a person starts at their folder, not at the recipe's."""
    key, _, value = word.partition("=")
    is_path = key.startswith(("task.", "rewards.", "policy.")) and key.rpartition(".")[2] == "path"
    is_folder = key == "model.path" and Path(value).is_dir() and value not in SHIPPED
    if not is_path and not is_folder:
        return word
    typed = value.strip().strip("\"'")
    return f"{key}={json.dumps(absolute(typed, Path.cwd()))}"
