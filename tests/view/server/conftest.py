"""Runs to look at: two small ones that were really trained, and one full of hostile text."""

import pytest
from viewed_runs import HOSTILE, RECIPE, hostile_run, open_client

from burnish.cli.entry import run


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BURNISH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """`first` and `second` (other seed) of the tiny model, and the hostile run."""
    folder = tmp_path_factory.mktemp("viewed")
    (folder / "small.toml").write_text(RECIPE)
    for name, seed in (("first", 1), ("second", 2)):
        words = ["train", str(folder / "small.toml"), f"run.name={name}", f"run.seed={seed}"]
        assert run([*words, "--quiet", "--runs", str(folder / "runs")]) == 0
    hostile_run(folder / "runs" / HOSTILE)
    return folder / "runs"


@pytest.fixture
def client(runs):
    with open_client(runs) as opened:
        yield opened
