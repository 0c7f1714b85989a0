"""`burnish compare` with more than two runs: runs by name, by pattern, by sweep."""

import csv
import io
import json

import pytest

from seed_runs import make_run, make_sweep


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Two settings with three seeds each, and the sweep that they belong to."""
    return make_sweep(tmp_path_factory.mktemp("many"))


@pytest.mark.parametrize(
    "words",
    [
        ["small-sweep"], ["{runs}/small-sweep.sweep.json"], ["slow-*", "fast-*"],
        ["{runs}/slow-?", "fast-0", "fast-1", "fast-2"], ["small-sweep", "slow-*"],
    ],
)  # fmt: skip
def test_runs_by_sweep_pattern_and_name(typed, many, words):
    given = [word.format(runs=many) for word in words]
    found = json.loads(typed("compare", *given, "--runs", many, "--json").out)
    slow, fast = found["groups"]
    assert (slow["label"], fast["label"]) == ("learning_rate=1e-06", "learning_rate=3e-06")
    assert [run["name"] for run in fast["runs"]] == ["fast-0", "fast-1", "fast-2"]
    assert fast["difference"]["value"] == pytest.approx(0.1)
    # t(2) = 4.302653 times 0.1 / sqrt(3), by hand in test_run_table.
    assert fast["difference"]["high"] == pytest.approx(0.1 + 0.248414, abs=1e-6)
    assert slow["after"]["value"] == pytest.approx(0.6)
    assert slow["before"]["value"] == 0.25
    assert (slow["seconds"]["value"], slow["tokens"]["value"], slow["usd"]) == (8.0, 400.0, None)
    assert found["differs"] == {"optimiser.learning_rate": [1e-6, 3e-6]}
    assert found["notes"] == []


def test_csv_baseline_metric_and_step(typed, many):
    words = ["compare", "small-sweep", "--runs", many, "--csv", "--baseline", "fast-1"]
    shown = typed(*words, "--metric", "reward/total").out
    slow, fast = csv.DictReader(io.StringIO(shown))
    assert float(slow["difference"]) == pytest.approx(-0.1)
    assert fast["difference"] == ""
    assert float(slow["reward/total"]) == pytest.approx(1.3)
    start = json.loads(typed("compare", "small-sweep", "--runs", many, "--step", 0, "--json").out)
    assert [group["after"]["value"] for group in start["groups"]] == [0.25, 0.25]


def test_a_run_without_a_score_is_named(typed, many, tmp_path):
    make_run(tmp_path / "none", 0, 1e-6, (0.25, None))
    make_run(tmp_path / "early", 1, 1e-6, (0.25,))
    words = [str(many / "fast-0"), str(many / "fast-1"), "none", "early"]
    found = json.loads(typed("compare", *words, "--runs", tmp_path, "--json").out)
    assert [group["after"] is None for group in found["groups"]] == [False, True]
    assert "run 'none' has no score after 4 steps" in found["notes"]
    assert "run 'early' has no held-out evaluation after its steps yet" in found["notes"]


def test_a_damaged_sweep_file_is_one_line(typed, tmp_path):
    (tmp_path / "bad.sweep.json").write_text('{"name": 3}')
    shown = typed("compare", "bad", "--runs", tmp_path)
    assert shown.code == 3
    assert "bad.sweep.json: damaged: Expected `str`, got `int`" in shown.err
