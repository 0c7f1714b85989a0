"""The list of commands agrees with their files, and help imports no more than it needs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.models
from typer.core import TyperGroup

from burnish.cli import app
from burnish.cli.app import COMMANDS, LazyCommand

LINES = {
    " ".join(words): command
    for words, command in (
        [((str(one.name),), one) for one in COMMANDS]
        + [
            ((str(group.name), name), command)
            for group in COMMANDS
            if isinstance(group, TyperGroup)
            for name, command in group.commands.items()
        ]
    )
    if isinstance(command, LazyCommand)
}

HELP = """
import contextlib, io, json, sys
from burnish.cli.entry import run

found = {}
for line in json.loads(sys.argv[1]):
    before = set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = run([*line.split(), "--help"])
    found[line] = [code, out.getvalue(), sorted(set(sys.modules) - before)]
print(json.dumps(found))
"""
SLOW = (
    "torch", "numpy", "anyio", "rich.live", "burnish.bench", "burnish.config.schema", "burnish.lm",
    "burnish.policy", "burnish.rewards", "burnish.training",
)  # fmt: skip


@pytest.fixture(scope="module")
def helps():
    """Exit code, text and newly imported modules of each help, in one process; `` is the first."""
    words = [sys.executable, "-c", HELP, json.dumps(["", *LINES])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, str, list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("line", LINES)
def test_the_list_says_of_a_command_what_its_docstring_says(line):
    command = LINES[line]
    documented = inspect.getdoc(command.function())
    assert documented is not None
    assert command.short_help == documented.splitlines()[0]


def is_command(function: Any) -> bool:
    """True where a parameter is declared for the command line."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except NameError:  # a type that is imported for the type checker only
        return False
    declared = [note for one in parameters for note in get_args(one.annotation)[1:]]
    return any(isinstance(note, typer.models.ParameterInfo) for note in declared)


def test_every_command_of_every_file_is_in_the_list():
    files = [path.stem for path in Path(app.__file__).parent.glob("[!_]*.py") if path.stem != "app"]
    declared = {
        f"{file}:{name}"
        for file in files
        for name, function in inspect.getmembers(import_module(f"burnish.cli.{file}"))
        if inspect.isfunction(function)
        and function.__module__ == f"burnish.cli.{file}"
        and is_command(function)
    }
    assert declared == {command.place for command in LINES.values()}


def test_the_first_help_imports_no_command(helps):
    code, text, modules = helps[""]
    assert code == 0
    files = {f"burnish.cli.{command.place.partition(':')[0]}" for command in LINES.values()}
    assert files.isdisjoint(modules)
    for command in COMMANDS:
        assert str(command.name) in text


@pytest.mark.parametrize("line", LINES)
def test_help_of_a_command_is_quick(line, helps):
    code, text, modules = helps[line]
    assert code == 0
    assert str(LINES[line].short_help)[:40] in text
    assert set(SLOW).isdisjoint(modules)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_output_is_one_line(tmp_path):
    words = [sys.executable, "-m", "burnish", "methods", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 3
    line = "burnish: the output cannot be used: No space left on device; free some space or write"
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
