"""The toys run in seconds, give the same figures twice, and show the effects that are robust."""

import csv
import math
from dataclasses import replace

import pytest
import torch
from lab.run_toys import METHODS, toys_of
from lab.toy import ToyArm, generator, run_toy
from lab.toy_report import write_toys

from burnish.policy import Recipe, StaticRegion

EVERY_TOY = [toy for method in METHODS for toy in toys_of(method)]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def toy_of(method, name):
    return next(toy for toy in toys_of(method) if toy.name == name)


def figures(toy, arm, seed=0, steps=0):
    return run_toy(toy, next(a for a in toy.arms if a.name == arm), seed, steps).row


@pytest.mark.parametrize("toy", EVERY_TOY, ids=lambda toy: toy.name)
def test_every_arm_of_every_toy_runs_and_its_figures_are_finite(toy):
    starts = []
    for arm in toy.arms:
        run = run_toy(toy, arm, seed=0, steps=3)
        # How many comparisons a step makes is the arm's own; all else is alike at the start.
        starts.append({k: v for k, v in run.curves[0].items() if k != "comparisons"})
        numbers = [value for row in (run.row, *run.curves) for value in row.values()]
        assert all(math.isfinite(value) for value in numbers if value is not None), arm.name
        # An arm without its own piece has no figures of it, and pass rates may not get that far.
        missing = {column.key for column in toy.columns if run.row.get(column.key) is None}
        assert missing <= {"entropy_at_level", "contrast/floor_share", "weights/safe/weight"}
        assert run.curves[3]["sampled"] > 0
    assert all(start == starts[0] for start in starts), "all arms of a seed start alike"


def test_a_run_repeats_itself():
    toy = toy_of("etr", "etr_graded")
    twice = [run_toy(toy, toy.arms[-1], 3, 4).curves for _ in range(2)]
    assert twice[0] == twice[1]
    assert twice[0] != run_toy(toy, toy.arms[-1], 4, 4).curves


def test_bounds_that_never_bind_leave_a_run_unchanged_until_they_do():
    toy = replace(toy_of("etr", "etr_graded"), epochs=1, minibatches=1)
    arms = [ToyArm("a", Recipe(trust_region=StaticRegion(eps, eps))) for eps in (0.01, 0.9)]
    # One update a batch: every ratio is 1, so that no interval can matter.
    one = [run_toy(toy, arm, 0, 4).curves for arm in arms]
    assert one[0] == one[1]
    many = [run_toy(replace(toy, epochs=4), arm, 0, 4).curves for arm in arms]
    assert many[0] != many[1]


def test_exact_pass_rates_agree_with_sampled_ones():
    world = toy_of("etr", "etr_graded").world(0)
    draw = generator("etr test")
    rewards = world.score(world.sample(2000, draw), draw).rewards_BK.view(-1, 2000).mean(1)
    assert (rewards - world.passes_Q).abs().max() < 0.05


def test_a_budget_of_trained_rollouts_gives_filters_more_steps_and_no_more_rollouts():
    toy = toy_of("gd2po", "gd2po_three")
    for arm in ("GDPO", "hard", "random, as many as hard"):
        row = figures(toy, arm, steps=10)
        full = 10 * 64 * toy.samples
        assert full <= row["trained_at_equal_rollouts"] < full * 1.15
        assert row["done_at_equal_rollouts"] == 10 if arm == "GDPO" else row["kept"] < 0.8


def test_afrl_more_imitation_keeps_more_of_the_tail_and_costs_the_head_nothing():
    toy = toy_of("afrl", "afrl_rules")
    none, some, much = (figures(toy, f"lambda {lam}", 1, 100) for lam in ("0", "0.03", "0.3"))
    # After 100 of its 300 steps, seeds 0 and 1: 0.73 and 0.59, 0.80 and 0.77, 0.90 and 0.91.
    assert none["start/tail_accuracy"] - 0.1 > none["tail_accuracy"]
    assert none["tail_accuracy"] + 0.05 < some["tail_accuracy"] < much["tail_accuracy"] - 0.05
    assert much["head_accuracy"] > none["head_accuracy"] - 0.04


def test_medalign_no_reward_is_left_behind_and_the_factors_guard_safety():
    even = toy_of("medalign", "medalign_five")
    least = {
        arm: figures(even, arm, steps=50)["gain/minimum"]
        for arm in ("sum, GRPO", "GDPO", "RFN, tri-factor")
    }
    assert min(least["GDPO"], least["RFN, tri-factor"]) > least["sum, GRPO"] + 0.2
    tempting = toy_of("medalign", "medalign_tempting")
    plain, tri = (figures(tempting, arm, steps=50) for arm in ("RFN only", "RFN, tri-factor"))
    assert tri["violations"] < tri["start/violations"] < plain["violations"]


def test_gdpo_beats_grpo_with_spikes_and_a_filter_needs_equal_rollouts_to_beat_gdpo():
    toy = toy_of("gd2po", "gd2po_spiky")
    gdpo, grpo, snr = (figures(toy, arm, steps=45) for arm in ("GDPO", "GRPO", "SNR 0.8"))
    assert gdpo["quality"] > grpo["quality"] + 0.05
    assert snr["at_equal_rollouts"] > gdpo["at_equal_rollouts"] + 0.05
    assert snr["quality"] < gdpo["quality"]


def test_brpo_beats_a_leaky_scalar_and_the_best_answer_is_no_reference():
    toy = toy_of("brpo", "brpo_padding")
    leaky, brpo, best = (
        figures(toy, arm, steps=70)
        for arm in ("leaky scalar, GRPO", "BRPO", "best of group as reference")
    )
    # After 70 of its 120 steps, seeds 0 and 1: 0.44 and 0.40 against 0.27 and 0.25.
    assert brpo["quality"] > leaky["quality"] + 0.05
    assert brpo["padding"] < 1 < leaky["padding"]
    assert best["quality"] < brpo["quality"] - 0.2
    assert best["kept_groups"] < 0.5 < brpo["kept_groups"]


def test_results_are_four_files_with_every_arm_and_seed(tmp_path):
    toy = replace(toy_of("clipo", "clipo_bandit"), arms=toy_of("clipo", "clipo_bandit").arms[:2])
    runs = {(toy.name, a.name, s): run_toy(toy, a, s, steps=2) for a in toy.arms for s in (0, 1)}
    text = write_toys("clipo", [toy], runs, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "toy_curves.csv", "toy_curves.png", "toy_runs.csv", "toy_table.md",
    ]  # fmt: skip
    with (tmp_path / "toy_runs.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["arm"], row["seed"]) for row in rows} == {(a, str(s)) for _, a, s in runs}
    mean = sum(run.row["valid_share"] for (_, arm, _), run in runs.items() if arm == "GRPO") / 2
    assert f"| GRPO | {mean:.3f} ± " in text
    assert text == (tmp_path / "toy_table.md").read_text()
