"""Other people's engines are reached by name: only `api`, `cli` and the registry know them, lazily."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import burnish
from burnish import registry
from burnish.errors import UserError

SRC = Path(burnish.__file__).parent
KNOWS = ("api", "cli")
"""Rooms that may import `burnish.engines`, inside of functions."""


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def engines_in(tree: ast.AST) -> set[int]:
    found = [node for node in imports(tree) if any("burnish.engines" in n for n in names(node))]
    return {node.lineno for node in found}


def test_only_api_and_cli_import_engines_and_only_inside_of_functions():
    faults = []
    for file in sorted(SRC.rglob("*.py")):
        room = file.relative_to(SRC).parts[0]
        if room == "engines":
            continue
        tree = ast.parse(file.read_bytes())
        inside = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for line in engines_in(node)
        }
        faults += [
            f"{file.relative_to(SRC)}:{line}"
            for line in engines_in(tree)
            if room not in KNOWS or line not in inside
        ]
    assert faults == []


def test_every_part_of_the_registry_is_there_and_others_are_named():
    for kind, parts in registry.PARTS.items():
        for name in parts:
            assert callable(registry.find(kind, name))
    with pytest.raises(UserError, match="sampler: got 'remot'; expected remote"):
        registry.find("sampler", "remot")
    with pytest.raises(UserError, match="no such kind"):
        registry.find("samplers", "remote")
