"""The `burnish` command. The only room that prints."""

from burnish.cli.entry import main

__all__ = ["main"]
