"""The `burnish` command: one file a command, listed in `app.py`. The only package that prints."""

from burnish.cli.entry import main as main
