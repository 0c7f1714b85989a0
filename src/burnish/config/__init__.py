"""Configs: TOML in, frozen typed values out, each with where it came from."""

from burnish.config.load import Resolved, load, render
from burnish.config.paths import rooted
from burnish.config.schema import FREE, Config

__all__ = ["FREE", "Config", "Resolved", "load", "render", "rooted"]
