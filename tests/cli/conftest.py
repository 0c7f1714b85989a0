"""A folder with one finished and one crashed run, and a way to type commands."""

from __future__ import annotations

import pytest
from cli_words import Typed
from stored_run import make_run

from burnish.cli.entry import run


@pytest.fixture
def typed(capsys, monkeypatch):
    """`typed("runs", "--json")`: run a command line in this process."""
    monkeypatch.setenv("COLUMNS", "100")

    def type_(*words: object) -> Typed:
        capsys.readouterr()
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Typed(code, captured.out, captured.err)

    return type_


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two runs: `grpo-abc`, finished, and `grpo-xyz`, whose writer is gone."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "grpo-abc")
    make_run(folder / "grpo-xyz", status=None)
    return folder
