"""Many runs in one table: means over seeds by hand, pairs by seed, and what is left out."""

import csv
import io
import math
from pathlib import Path

import pytest

from burnish.bench import t_estimate
from burnish.bench.comparable import group_labels
from burnish.bench.run_tables import RunFigures, SeedMean, group_runs, seed_mean
from burnish.errors import UserError
from burnish.records import Message, Task

SETTINGS = {
    "task.kind": "arithmetic", "rewards.0.kind": "numeric", "rewards.0.weight": 1.0,
    "evaluation.part": "", "evaluation.every": 0, "optimiser.learning_rate": 1e-6,
    "policy.advantage.kind": "grpo", "run.name": "",
}  # fmt: skip
REACH = 4.302652729749464 * 0.1 / math.sqrt(3)
"""Half of the interval around three values with a standard deviation of 0.1: t(2) sd / sqrt(3)."""


def figures(name, seed, after, before=0.2, recipe="tiny", tasks=("p1",), **changes):
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    held_out = {key: Task(key, (Message("user", f"{key}?"),), {"answer": "1"}) for key in tasks}
    return RunFigures(
        name=name, folder=Path("runs") / name, recipe=recipe, status="finished",
        settings=SETTINGS | {"run.seed": seed} | keys, steps=10, step=10, before=before,
        after=after, seconds=10.0 + seed, tokens=1000.0, metrics={"reward/total": after},
        tasks=held_out, problem="" if after is not None else f"run '{name}' has no score",
    )  # fmt: skip


def two_groups():
    fast = {"optimiser__learning_rate": 3e-6}
    return [
        *(figures(f"a{s}", s, v) for s, v in enumerate((0.5, 0.6, 0.7))),
        *(figures(f"b{s}", s, v, **fast) for s, v in enumerate((0.6, 0.8, 0.7))),
    ]


def assert_mean(mean, value, reach, size):
    assert mean.size == size
    assert mean.value == pytest.approx(value)
    assert (mean.low, mean.high) == pytest.approx((value - reach, value + reach))


def test_t_interval_by_hand():
    """Values 1, 2, 3: mean 2, sd 1, t(2) = 4.3027 over sqrt(3)."""
    value, low, high, size = t_estimate([1.0, 2.0, 3.0])
    assert (value, size) == (2.0, 3)
    assert (low, high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    # t(1) = 12.7062, sd = sqrt(1/2): the reach is 12.7062 / 2.
    assert t_estimate([0.0, 1.0]).high == pytest.approx(0.5 + 12.706205 / 2, abs=1e-6)
    # t(9) = 2.262157, sd^2 = 55 / 6.
    ten = t_estimate([float(n) for n in range(10)])
    assert ten.high - ten.value == pytest.approx(2.262157 * math.sqrt(55 / 6 / 10), abs=1e-5)


def test_equal_values_have_an_interval_of_no_width():
    assert t_estimate([0.5, 0.5, 0.5])[:3] == (0.5, 0.5, 0.5)


def test_mean_interval_and_paired_difference_over_seeds():
    table = group_runs(two_groups())
    slow, fast = table.groups
    assert [group.label for group in table.groups] == ["learning_rate=1e-06", "learning_rate=3e-06"]
    assert slow.seeds == fast.seeds == [0, 1, 2]
    assert_mean(slow.after, 0.6, REACH, 3)
    assert_mean(fast.after, 0.7, REACH, 3)
    assert_mean(slow.change, 0.4, REACH, 3)
    # 0.1, 0.2 and 0.0 by seed: the same spread, around 0.1.
    assert_mean(fast.difference, 0.1, REACH, 3)
    assert (slow.difference, slow.problem, fast.problem) == (None, "", "")
    assert slow.before[:3] == pytest.approx((0.2, 0.2, 0.2))
    assert slow.seconds.value == 11.0
    assert_mean(fast.metrics["reward/total"], 0.7, REACH, 3)
    assert table.differs == {"optimiser.learning_rate": [1e-6, 3e-6]}
    assert table.notes == []


def test_pairs_are_made_by_seed_not_by_place():
    runs = two_groups()
    shuffled = group_runs([runs[0], runs[2], runs[1], runs[5], runs[3], runs[4]])
    assert_mean(shuffled.groups[1].difference, 0.1, REACH, 3)
    fewer = group_runs([*runs[:3], runs[4]])
    assert fewer.groups[1].difference == SeedMean(pytest.approx(0.2), None, None, 1)


def test_baseline_by_run_by_its_beginning_and_by_label():
    for asked in ("b1", "b", "learning_rate=3e-06"):
        table = group_runs(two_groups(), baseline=asked)
        assert table.baseline == 1
        assert table.groups[0].difference.value == pytest.approx(-0.1)
        assert table.groups[1].difference is None
    with pytest.raises(UserError, match="baseline: got 'c', expected a group or one of its runs"):
        group_runs(two_groups(), baseline="c")


def test_one_run_has_no_interval_and_that_is_said():
    table = group_runs(two_groups()[2:4])
    assert table.groups[0].after == SeedMean(0.7, None, None, 1)
    assert table.groups[1].difference is None
    assert table.groups[1].problem == "no seed in common"
    assert table.notes[-1] == (
        "no interval over seeds for any group: one run each; train more seeds"
    )


def test_a_run_without_a_score_is_no_number():
    runs = [*two_groups(), figures("b3", 3, None, optimiser__learning_rate=3e-06)]
    table = group_runs(runs)
    assert table.groups[1].after.size == 3
    assert table.groups[1].difference.size == 3
    assert "run 'b3' has no score" in table.notes
    assert seed_mean([None, None]) is None
    both = group_runs([figures("a", 0, None), figures("b", 0, 0.5, steps=20)])
    assert (both.groups[0].after, both.groups[1].difference) == (None, None)
    assert both.groups[1].problem == "no seed with a score in both"


def test_the_same_seed_twice_counts_once():
    table = group_runs([*two_groups(), figures("a0-2", 0, 0.9)])
    assert table.groups[0].after.size == 3
    assert table.notes == ["run 'a0-2' is left out: run 'a0' has the same settings and seed"]
    # The repetition stands in for a run without a score.
    other = group_runs([figures("a", 0, None), figures("a-2", 0, 0.9), *two_groups()[3:]])
    assert [run.name for run in other.groups[0].runs] == ["a-2"]


def test_settings_that_may_change_in_a_continuation_part_no_group():
    runs = [
        figures("a", 0, 0.5, evaluation__every=5, checkpoint__every=3, guards__failed_share=0.1),
        figures("b", 1, 0.6, run__name="mine", rewards__0__budget__usd=3.0),
    ]
    table = group_runs(runs)
    assert len(table.groups) == 1
    assert table.groups[0].label == "tiny"


def test_scores_that_do_not_mean_the_same_have_no_difference():
    heavier = figures("b", 0, 0.9, rewards__0__weight=2.0)
    other = figures("c", 0, 0.9, tasks=("q1",), task__level=2)
    table = group_runs([figures("a", 0, 0.5), heavier, other])
    assert [group.difference for group in table.groups] == [None] * 3
    assert "their rewards differ (rewards.numeric.weight: 1.0 and 2.0)" in table.groups[1].problem
    assert "their held-out tasks differ" in table.groups[2].problem
    assert table.groups[1].after.value == 0.9
    assert sum("no difference:" in note for note in table.notes) == 2


@pytest.mark.parametrize(
    ("changes", "keys", "labels"),
    [
        # What a sweep varies names the groups, whatever else differs.
        (
            {"policy__advantage__kind": "dr_grpo", "policy__advantage__unit": 1},
            ["policy.advantage.kind"],
            ["advantage=grpo", "advantage=dr_grpo"],
        ),
        # A setting that only one kind has is left to the table of settings.
        (
            {"policy__advantage__kind": "dr_grpo", "policy__advantage__unit": 1},
            [],
            ["advantage=grpo", "advantage=dr_grpo"],
        ),
        ({"policy__new": True}, [], ["new=-", "new=true"]),
        # Nobody reads digests: they are left out, and alone they leave the runs' names.
        (
            {"files__my_rewards.py": "3f2a91c0d1e2", "optimiser__learning_rate": 1e-05},
            [],
            ["learning_rate=1e-06", "learning_rate=1e-05"],
        ),
        ({"files__my_rewards.py": "3f2a91c0d1e2"}, [], ["a0", "b0"]),
        ({"task__path": "memory:brief@1f0c9a3b2d4e5f60"}, [], ["task=-", "task=brief"]),
        # An empty value says nothing beside others, and a place in a list is no name.
        (
            {"evaluation__part": "late", "rewards__0__kind": "exact"},
            [],
            ["kind=numeric", "kind=exact"],
        ),
        # Three settings at most.
        (
            {
                "task__kind": "file", "rewards__0__kind": "exact", "rewards__0__weight": 2.0,
                "optimiser__learning_rate": 1e-05,
            },
            [],
            ["task=arithmetic kind=numeric weight=1.0", "task=file kind=exact weight=2.0"],
        ),
    ],
)  # fmt: skip
def test_labels_of_groups_of_several_runs(changes, keys, labels):
    runs = [figures(f"a{seed}", seed, 0.5) for seed in (0, 1)]
    runs += [figures(f"b{seed}", seed, 0.6, **changes) for seed in (0, 1)]
    table = group_runs(runs, keys=keys)
    assert [group.label for group in table.groups] == labels


def test_a_group_of_one_run_has_its_name_but_in_a_sweep():
    fast = {"optimiser__learning_rate": 3e-6}
    both = [figures("a", 0, 0.5), figures("b", 0, 0.6, recipe="dapo", **fast)]
    assert [group.label for group in group_runs(both).groups] == ["a", "b"]
    third = figures("c", 1, 0.6, recipe="dapo", **fast)
    assert [group.label for group in group_runs([*both, third]).groups] == ["a", "dapo"]
    swept = group_runs(both, keys=["optimiser.learning_rate"])
    assert [group.label for group in swept.groups] == ["learning_rate=1e-06", "learning_rate=3e-06"]


def test_the_settings_of_a_label_are_those_that_part_the_groups():
    """Eight groups need the last three of five settings; sixteen of a sweep need all four."""
    names = [[f"{place}-0", f"{place}-1"] for place in range(16)]
    bits = {
        f"policy.{name}": [place >> n & 1 for place in range(16)] for n, name in enumerate("wxyz")
    }
    eight = {key: values[:8] for key, values in bits.items()}
    eight = {"policy.u": [0] * 7 + [1], "policy.v": [0] * 7 + [2], **eight}
    labels = group_labels(names[:8], ["tiny"] * 8, eight, ())
    assert labels[:2] == ["w=0 x=0 y=0", "w=1 x=0 y=0"]
    swept = group_labels(names, ["tiny"] * 16, bits, list(bits))
    assert swept[:2] == ["w=0 x=0 y=0 z=0", "w=1 x=0 y=0 z=0"]
    assert group_labels(names, ["tiny"] * 16, bits, ()) == [group[0] for group in names]


def test_csv_and_record_hold_the_same_numbers():
    table = group_runs(two_groups())
    first, second = csv.DictReader(io.StringIO(table.csv()))
    assert (first["group"], first["optimiser.learning_rate"]) == ("learning_rate=1e-06", "1e-06")
    assert first["difference"] == ""
    assert (second["seeds"], second["after_runs"]) == ("0 1 2", "3")
    record = table.record()
    assert float(second["difference_low"]) == record["groups"][1]["difference"]["low"]
    assert record["baseline"] == "learning_rate=1e-06"
    assert [run["name"] for run in record["groups"][1]["runs"]] == ["b0", "b1", "b2"]
    assert record["groups"][1]["settings"] == {"optimiser.learning_rate": 3e-6}
