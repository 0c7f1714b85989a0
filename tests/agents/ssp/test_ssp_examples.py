"""The examples in the docstrings of search self-play run as they stand."""

import doctest
import importlib

import pytest

MODULES = ("check", "corpora", "pool", "report", "rules", "searching", "tags", "world")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"burnish.agents.ssp.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
