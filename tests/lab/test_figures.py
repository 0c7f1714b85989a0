"""Means, paired differences and comparisons at equal cost, by hand."""

import math
from types import SimpleNamespace

import pytest
from lab.collect import trained
from lab.figures import (
    differences,
    entropies_at_equal_reward,
    scores_at_equal_tokens,
    smoothed,
    spread,
)
from lab.gd2po.spikes import SHARE, SIZE, spike, spiky_correctness
from lab.slots import Record
from lab.tables import Tables


def _run(arm, seed, value, status="finished"):
    return {"study": "s", "arm": arm, "seed": seed, "status": status, "x": value}


def test_spread_is_mean_and_sample_deviation():
    found = spread([1.0, 2.0, 6.0])
    assert found is not None
    assert found.mean == 3.0
    assert found.deviation == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert spread([]) is None
    assert spread([5.0]) == (5.0, None, 1)


def test_differences_pair_seeds_and_leave_out_what_failed():
    runs = [_run("a", 0, 1.0), _run("a", 1, 2.0), _run("a", 2, 9.0)]
    runs += [_run("b", 1, 5.0), _run("b", 0, 1.5), _run("b", 2, None, "failed")]
    assert differences(runs, "b", "a", "x") == [0.5, 3.0]


def test_smoothed_is_a_trailing_mean():
    assert smoothed([1.0, 3.0, 5.0, 9.0], window=2) == [1.0, 2.0, 4.0, 7.0]


def _step(done, tokens=None, score=None, reward=None, entropy=None):
    return {
        "done": done, "trained_tokens": tokens, "score": score, "reward/total": reward,
        "policy/entropy": entropy,
    }  # fmt: skip


def test_scores_are_read_at_the_thriftiest_arm_s_tokens():
    dear = [_step(0, score=0.0), _step(1, 100), _step(2, 100, 0.4), _step(3, 200, 0.6)]
    thrifty = [_step(0, score=0.0), _step(1, 50), _step(2, 100), _step(3, 150, 0.5)]
    found = scores_at_equal_tokens({("dear", 0): dear, ("thrifty", 0): thrifty})
    # 300 tokens: half way between the evaluations at 200 (0.4) and 400 (0.6).
    assert found == {("dear", 0): pytest.approx(0.5), ("thrifty", 0): 0.5}


def test_entropies_are_read_where_the_lowest_arm_ends():
    low = [_step(k, reward=0.1 * k, entropy=1.0 - 0.1 * k) for k in range(6)]
    high = [_step(k, reward=0.2 * k, entropy=2.0 - 0.1 * k) for k in range(6)]
    found = entropies_at_equal_reward({("low", 3): low, ("high", 3): high})
    # Means over five steps: `low` ends at 0.3; `high` reaches it at its fourth row (0, .2, .4, .6).
    assert found["low", 3] == pytest.approx(0.7)
    assert found["high", 3] == pytest.approx((2.0 + 1.9 + 1.8 + 1.7) / 4)


def _record(arm, seed, figure, status="finished"):
    row = {} if status == "failed" else {"x": figure, "none": None}
    return Record("s", arm, seed, status, 'a, "b"', "", row, [{"done": 0, "score": figure}])


class _Store:
    """Samples of two steps: moving, without advantage, left out, and dropped before the update."""

    def __init__(self, **config):
        self.about = SimpleNamespace(config=config)

    def table(self, name, columns):
        assert (name, columns) == (
            "samples",
            ("step", "split", "keep", "advantage", "response_tokens"),
        )
        yield (0, "train", 1, 0.5, 10)
        yield (0, "train", 1, 0.0, 20)
        yield (0, "train", 0, 0.7, 40)
        yield (0, "dropped", 0, None, 80)
        yield (1, "train", 0, 0.7, 40)
        yield (1, "eval:held_out", 0, None, 160)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {0: (10, 1 / 3), 1: (0, 0.0)}),
        ({"update.epochs": 2}, {0: (20, 1 / 3), 1: (0, 0.0)}),
        ({"policy.auxiliary.0.kind": "sft"}, {0: (10, 1 / 3), 1: (0, 0.0)}),
        ({"policy.auxiliary.0.kind": "kl"}, {0: (30, 2 / 3), 1: (0, 0.0)}),
    ],
)
def test_trained_counts_what_the_backward_pass_sees(config, expected):
    assert trained(_Store(**config)) == expected


def test_tables_come_back_and_are_merged_by_run(tmp_path):
    Tables.of([_record("a", 0, 0.25), _record("a", 1, 0.5)], 3).write(tmp_path, ["s"])
    Tables.of([_record("a", 1, 0.75), _record("b", 0, 1.0, "failed")], 1).write(tmp_path, ["s"])
    tables = Tables.read(tmp_path)
    assert [(r["arm"], r["seed"], r["x"], r["jobs"]) for r in tables.runs] == [
        ("a", 0, 0.25, 3),
        ("a", 1, 0.75, 1),
        ("b", 0, None, 1),
    ]
    assert tables.runs[0]["reason"] == 'a, "b"'
    assert tables.runs[0]["none"] is None
    assert [r["score"] for r in tables.curves] == [0.25, 0.75, 1.0]


def test_spikes_are_rare_large_both_ways_and_repeatable():
    drawn = [spike(f"text {k}", "answer") for k in range(4000)]
    assert set(drawn) == {0.0, SIZE, -SIZE}
    for sign in (SIZE, -SIZE):
        assert drawn.count(sign) / 4000 == pytest.approx(SHARE / 2, abs=0.012)
    assert drawn == [spike(f"text {k}", "answer") for k in range(4000)]


def test_spiky_correctness_is_the_true_one_plus_the_spike():
    right = '{"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius"}}'
    assert spiky_correctness(right, right) == pytest.approx(1.0 + spike(right, right))
    assert spiky_correctness("no call", right) == pytest.approx(spike("no call", right))
