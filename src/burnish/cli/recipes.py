"""Recipes as a command line names them; the recipes themselves are `burnish.config.recipes`."""

from __future__ import annotations

from burnish.config.recipes import (
    PACKAGE,
    QUICK_START,
    Asked,
    RecipeCard,
    all_recipes,
    find_recipe,
    read_card,
    recipe_folder,
    resolve,
)

__all__ = [
    "PACKAGE",
    "QUICK_START",
    "Asked",
    "RecipeCard",
    "all_recipes",
    "find_recipe",
    "read_card",
    "recipe_folder",
    "resolve",
]
