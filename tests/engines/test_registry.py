"""Other people's engines are reached by name: only `api`, `cli` and the registry know them, lazily."""

import ast
from pathlib import Path

import pytest

import burnish
from burnish import registry
from burnish.errors import UserError

SRC = Path(burnish.__file__).parent
KNOWS = ("api", "cli")
"""Rooms that may import `burnish.engines`, inside of functions."""


def engines_in(tree: ast.AST) -> set[int]:
    """Lines that import anything of `burnish.engines`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if any(f"{home}{alias.name}".startswith("burnish.engines") for alias in node.names):
                found.add(node.lineno)
    return found


def test_only_api_and_cli_import_engines_and_only_inside_of_functions():
    faults = []
    for file in sorted(SRC.rglob("*.py")):
        room = file.relative_to(SRC).parts[0]
        tree = ast.parse(file.read_bytes())
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        inside = [engines_in(node) for node in ast.walk(tree) if isinstance(node, functions)]
        allowed = set().union(*inside) if room in KNOWS else set()
        if room != "engines":
            faults += [f"{file.relative_to(SRC)}:{line}" for line in engines_in(tree) - allowed]
    assert faults == []


def test_every_part_of_the_registry_is_there_and_others_are_named():
    for kind, parts in registry.PARTS.items():
        for name in parts:
            assert callable(registry.find(kind, name))
    with pytest.raises(UserError, match="sampler: got 'remot'; expected remote"):
        registry.find("sampler", "remot")
    with pytest.raises(UserError, match="no such kind"):
        registry.find("samplers", "remote")
