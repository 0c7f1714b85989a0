"""Configs: TOML or Python in, frozen typed values out, each with where it came from."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.config.loading import Resolved as Resolved, load as load, render as render
    from burnish.config.paths import rooted as rooted
    from burnish.config.schema import FREE as FREE, Config as Config

# Recipes are listed without the schema, which imports every reward and task.
__getattr__, __dir__ = lazy_exports(__name__)
