"""Many runs on one page: the same numbers as `burnish compare`, bands by hand, and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
from viewed_runs import open_client

from seed_runs import SWEEP, make_run, make_sweep

RUNS = ["slow-0", "slow-1", "slow-2", "fast-0", "fast-1", "fast-2"]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("seeds"))


@pytest.fixture
def many(seeds):
    with open_client(seeds) as opened:
        yield opened


def values(mean: Any) -> list[float]:
    return [mean["value"], mean["low"], mean["high"]]


@pytest.mark.parametrize("asked", [{"sweep": SWEEP}, {"run": RUNS}])
def test_groups_over_seeds_by_hand(many, asked):
    page = many.get("/compare/runs", **asked)
    reach = 4.302652729749464 * 0.1 / math.sqrt(3)
    slow, fast = page["groups"]
    assert [group["label"] for group in page["groups"]] == [
        "learning_rate=1e-06",
        "learning_rate=3e-06",
    ]
    assert values(slow["after"]) == pytest.approx([0.6, 0.6 - reach, 0.6 + reach])
    assert values(fast["difference"]) == pytest.approx([0.1, 0.1 - reach, 0.1 + reach])
    assert (slow["difference"], slow["problem"], page["baseline"]) == (None, "", 0)
    assert [(run["key"], run["seed"]) for run in fast["runs"]] == [
        ("fast-0", 0),
        ("fast-1", 1),
        ("fast-2", 2),
    ]
    assert page["differs"] == [
        {"key": "optimiser.learning_rate", "values": [1e-6, 3e-6], "there": [True, True]}
    ]
    assert (page["steps"], page["notes"]) == ([0, 4], [])


def test_a_curve_is_the_mean_between_the_lowest_and_the_highest(many):
    """Seeds 0, 1 and 2 start at 0, 1 and 2 and rise by 0.1 a step."""
    page = many.get("/compare/runs", sweep=SWEEP, name="reward/total")
    assert list(page["curves"]) == ["held out", "reward/total"]
    band = page["curves"]["reward/total"][1]
    assert band["steps"] == [0, 1, 2, 3]
    assert band["values"] == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert band["low"] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert band["high"] == pytest.approx([2.0, 2.1, 2.2, 2.3])
    assert band["runs"] == 3
    assert page["curves"]["held out"][0]["values"] == pytest.approx([0.25, 0.6])
    assert page["titles"]["held out"] == "Held-out reward"


def test_baseline_and_step_can_be_chosen(many):
    page = many.get("/compare/runs", sweep=SWEEP, baseline="fast-1", step=4)
    assert page["baseline"] == 1
    assert page["groups"][0]["difference"]["value"] == pytest.approx(-0.1)
    start = many.get("/compare/runs", sweep=SWEEP, step=0)
    assert [group["after"]["value"] for group in start["groups"]] == [0.25, 0.25]


def test_one_run_a_group_has_no_interval(many):
    page = many.get("/compare/runs", run=["slow-0", "fast-0"])
    assert page["groups"][0]["after"] == {"value": 0.5, "low": None, "high": None, "runs": 1}
    assert page["notes"] == ["no interval over seeds for any group: one run each; train more seeds"]


def test_sweeps_are_listed(many):
    assert many.get("/sweeps") == {
        "sweeps": [
            {
                "name": SWEEP, "recipe": "small", "varied": ["optimiser.learning_rate"], "runs": 6,
                "planned": 7, "failed": 1, "problem": "",
            }
        ]
    }  # fmt: skip


def test_a_damaged_sweep_says_so_and_the_rest_is_shown(tmp_path):
    make_run(tmp_path / "one", 0, 1e-6, (0.1, 0.2))
    (tmp_path / "bad.sweep.json").write_text("{")
    with open_client(tmp_path) as client:
        (line,) = client.get("/sweeps")["sweeps"]
        assert "bad.sweep.json: damaged" in line["problem"]
        assert len(client.get("/runs")["runs"]) == 1


@pytest.mark.parametrize(
    ("asked", "code", "line"),
    [
        ({"run": ["slow-0", "slow-0"]}, 400, "run 'slow-0' is compared with itself"),
        ({"run": ["slow-0"]}, 400, "expected at least two runs"),
        ({"run": ["slow-0", "slow-8"]}, 404, "no run 'slow-8' here"),
        ({"sweep": "none"}, 404, "no sweep 'none' here"),
        ({"sweep": "../small-sweep"}, 404, "no sweep '../small-sweep' here"),
        ({"sweep": SWEEP, "baseline": "x"}, 400, "baseline: got 'x'"),
        ({"sweep": SWEEP, "runs": "x"}, 400, "unknown parameter 'runs'"),
    ],
)
def test_mistakes_get_one_line(many, asked, code, line):
    error = many.get("/compare/runs", code, **asked)["error"]
    assert line in error
    assert "\n" not in error
