"""The examples in the docstrings of search self-play run as they stand."""

import doctest
import importlib

import pytest

GAME = ("check", "corpora", "pool", "rules", "world")
MODULES = ("burnish.rollouts.search", *(f"burnish.agents.ssp.{name}" for name in GAME))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
