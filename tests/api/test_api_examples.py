"""Every public name of `burnish` has a docstring, and the examples in them run as they stand."""

from __future__ import annotations

import asyncio
import doctest
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import burnish

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {name: getattr(burnish, name) for name in burnish.__all__}
NEEDS_NO_EXAMPLE = {"Judgement", "Generated", "Evaluated", "Compared", "Aligned"}
"""What the functions return: their examples show it."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with one finished run `first`, which examples look at."""
    folder = tmp_path_factory.mktemp("examples")
    burnish.train(
        "tiny", steps=2, name="first", runs=folder / "runs",
        rollout={"prompts": 2, "samples": 4, "max_tokens": 4}, evaluation={"prompts": 4},
        show=False,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_says_what_it_is(name):
    text = inspect.getdoc(PUBLIC[name]) or ""
    first = text.splitlines()[0] if text else ""
    assert len(first) > 15, f"burnish.{name} has no docstring"
    assert first.endswith((".", ":")), f"burnish.{name}: {first}"
    if name not in NEEDS_NO_EXAMPLE:
        assert examples_of(PUBLIC[name], name), f"burnish.{name} has no example"


def examples_of(value: Any, name: str) -> list[doctest.DocTest]:
    """The examples in the docstring of a name and of its methods."""
    finder = doctest.DocTestFinder(exclude_empty=True, recurse=True)
    module = inspect.getmodule(value)
    globs = dict(vars(burnish)) | {one: PUBLIC[one] for one in PUBLIC}
    found = finder.find(value, name, module=module, globs=globs)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_examples_run(name, home, monkeypatch):
    monkeypatch.chdir(home)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in examples_of(PUBLIC[name], name):
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


def test_everything_public_is_listed():
    listed = dir(burnish)
    assert set(burnish.__all__) <= set(listed)
    assert {"policy", "rewards", "lm", "store", "tasks", "training", "bench"} <= set(listed)
    assert burnish.policy.compute is not None


def test_the_reference_is_current():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import make_api
    finally:
        sys.path.pop(0)
    assert make_api.PAGE.read_text() == make_api.page(), "run: python docs/make_api.py"


def test_a_loop_of_ones_own_learns():
    path = ROOT / "examples" / "own_loop.py"
    spec = importlib.util.spec_from_file_location("own_loop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len(inspect.getsource(module.train).splitlines()) <= 40
    means = asyncio.run(module.train(14))
    assert sum(means[-2:]) / 2 > 5 * sum(means[:2]) / 2
