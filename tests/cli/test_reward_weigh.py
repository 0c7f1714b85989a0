"""`burnish reward weigh` on runs made by hand and on files of recorded rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stored_run import make_sample

from burnish.bench.weigh_rewards import not_followed, reason_of
from burnish.policy import Contrastive, NormaliseThenSum, Raw, Recipe
from burnish.records import Evidence, Reward, Status, Verdict
from burnish.store import RunStore, StoredSample

ROWS: list[dict[str, Any]] = [
    {"group": "a", "rewards": {"points": 10, "safe": -1}, "diagnosis": {"safe": "names a dose"}},
    {"group": "a", "rewards": {"points": 5, "safe": 0}},
    {"group": "a", "rewards": {"points": 0, "safe": None}},
    {"group": "b", "rewards": {"points": 3, "safe": -1}, "diagnosis": {"safe": "names a dose"}},
    {"group": "b", "rewards": {"points": 4, "safe": -1}, "id": "last"},
]
RULE = ("--threshold", "safe=-0.5", "--severity", "safe=3")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_run(folder: Path, rewards: list[list[Reward]], config: dict[str, Any]) -> None:
    """One step a list, two answers a group."""
    with RunStore.create(folder, config, {}, recipe="medalign") as store:
        for step, given in enumerate(rewards):
            samples = []
            for index, reward in enumerate(given):
                plain = make_sample(step, index % 4)
                samples.append(
                    StoredSample(
                        step=step, split="train", index=index, task=plain.task,
                        trajectory=plain.trajectory, reward=reward,
                    )
                )  # fmt: skip
            store.append_rollouts(step, samples)
        store.finish("finished", {})


def total(points: float, safe: float | None, why: str = "") -> Reward:
    second = (
        Reward.failed("safe", Status.TIMEOUT, "too late")
        if safe is None
        else Reward("safe", safe, reason=why)
    )
    return Reward("total", points, parts=(Reward("points", points), second))


def test_a_file_gets_one_table_a_method_and_its_reasons(typed, tmp_path):
    shown = typed("reward", "weigh", write(tmp_path / "rows.jsonl", ROWS), *RULE)
    assert (shown.code, shown.err) == (0, "")
    assert "5 answers in 2 groups" in shown.out
    lines = shown.out.splitlines()
    assert sum(line.startswith("reward ") for line in lines) == 4
    head = next(line.split() for line in lines if "weakness" in line)
    assert head[:5] == ["reward", "share", "agrees", "weight", "settles"]
    assert "safe below -0.5: 3 of 4 answers" in lines
    assert "  2 x  names a dose  line 1" in lines
    assert "  1 x  (the reward gives no reason)" in lines


def test_the_json_of_a_file_by_hand(typed, tmp_path):
    rows = [{"group": 1, "rewards": {"a": 0, "b": 1}}, {"group": 1, "rewards": {"a": 10, "b": 0}}]
    shown = typed("reward", "weigh", write(tmp_path / "rows.jsonl", rows), "--json")
    record = json.loads(shown.out)
    assert record["methods"]["sum"]["a"]["share"] == pytest.approx(10 / 11)
    assert record["methods"]["sum"]["b"]["correlation"] == pytest.approx(-1)
    assert record["rewards"]["a"]["reference_mean"] == 5
    assert record["below_threshold"] == []
    assert record["category_shares"] == {}


def test_a_run_is_weighed_by_its_own_settings_and_categories(typed, tmp_path):
    first = [total(1, 0), total(0, -1, "red line"), total(2, -1, "red line"), total(3, None)]
    then = [total(5, 0), total(0, -1, "no referral"), total(2, -1), total(3, 0)]
    config = {
        "rewards.0.kind": "function", "rewards.0.path": "mine.py:points",
        "rewards.0.category": "knowledge", "rewards.1.kind": "numeric", "rewards.1.name": "safe",
        "rewards.1.category": "safety", "policy.shaping.0.kind": "reference_frozen",
        "policy.shaping.0.clip": 2.0, "policy.weights.kind": "tri_factor",
        "policy.weights.severity.safe": 3.0, "policy.weights.threshold.safe": -0.5,
    }  # fmt: skip
    make_run(tmp_path / "med", [first, then], config)
    shown = typed("reward", "weigh", "med", "--runs", tmp_path, "--json")
    record = json.loads(shown.out)
    assert record["source"] == "run 'med', steps 1 to 2"
    assert record["unit"] == "the first 4 answers"
    assert record["rewards"]["points"]["reference_mean"] == 1.5
    # Step 0: 2 of 3 values below; step 1: 2 of 4. A moving average of 0.8.
    assert record["rewards"]["safe"]["violation"] == pytest.approx(0.8 * 2 / 3 + 0.2 * 0.5)
    assert record["rewards"]["safe"]["risk"] == pytest.approx(1 + 3 * (0.8 * 2 / 3 + 0.1))
    below = record["below_threshold"][0]
    assert (below["reward"], below["answers"], below["of"], below["silent"]) == ("safe", 4, 7, 1)
    assert below["causes"] == [
        {"reason": "red line", "answers": 2, "sample": "train-1-1-2"},
        {"reason": "no referral", "answers": 1, "sample": "train-2-1-2"},
    ]
    assert record["categories"] == {"points": "knowledge", "safe": "safety"}
    shares = record["category_shares"]
    for method, rewards in record["methods"].items():
        assert shares["safety"][method] == rewards["safe"]["share"]
    text = typed("reward", "weigh", "med", "--runs", tmp_path, "--step", "2").out
    assert "steps 2 to 2: 4 answers in 2 groups" in text
    assert "share by category" in text
    assert "no referral  train-2-1-2" in text
    assert "red line" not in text


def test_rewards_of_weight_zero_are_left_out_and_named(typed, tmp_path):
    parts = (Reward("points", 1.0), Reward("watched", 5.0, weight=0.0))
    make_run(tmp_path / "one", [[Reward("total", 1.0, parts=parts)] * 4], {})
    shown = typed("reward", "weigh", "one", "--runs", tmp_path)
    assert "of weight 0, left out: watched" in shown.out
    assert "no group has rewards that differ" in shown.out
    # Nothing differs, so nothing has a share: a dash, not a number.
    assert ["points", "-", "-"] in [line.split() for line in shown.out.splitlines()]


def test_the_run_of_the_other_commands_too(typed, runs):
    """Two rewards, and a total that failed whole and so has no parts."""
    shown = typed(
        "reward", "weigh", "grpo-abc", "--runs", runs, "--threshold", "correct=0.5", "--json"
    )
    record = json.loads(shown.out)
    assert list(record["rewards"]) == ["correct", "format"]
    assert record["methods"]["sum"]["correct"]["share"] == 1.0
    below = record["below_threshold"][0]
    assert (below["answers"], below["of"]) == (4, 12)
    assert below["causes"] == [{"reason": "compared", "answers": 4, "sample": "train-1-1-2"}]


def test_reasons_are_those_of_the_reward_in_its_own_words():
    saw = Evidence("rule", "line 2 is empty")
    assert reason_of(Reward("x", 0.0, evidence=(saw,), reason="bad")) == "bad"
    verdict = Verdict("tone", 0.0, reason="rude")
    assert reason_of(Reward("x", 0.0, evidence=(saw,), verdicts=(verdict,))) == "rude"
    assert reason_of(Reward("x", 0.0, evidence=(saw,))) == "line 2 is empty"
    inner = Reward("y", 0.0, evidence=(saw,))
    assert reason_of(Reward("x", 0.0, parts=(inner,))) == "y: line 2 is empty"
    assert reason_of(Reward("x", 0.0)) == ""


def test_an_empty_run_and_missing_rewards_are_told_in_one_line(typed, tmp_path):
    RunStore.create(tmp_path / "empty", {}, {}, recipe="grpo").close()
    nothing = typed("reward", "weigh", "empty", "--runs", tmp_path)
    assert nothing.code == 2
    assert nothing.err == "burnish: run 'empty' has no samples; it has no steps yet.\n"
    make_run(tmp_path / "med", [[total(1, 0), total(0, -1)] * 2], {})
    steps = typed("reward", "weigh", "med", "--runs", tmp_path, "--step", "4..9")
    assert "has no samples of steps 4 to 9; it has steps 1 to 1" in steps.err
    other = typed("reward", "weigh", "med", "--runs", tmp_path, "--threshold", "sage=1")
    assert other.code == 2
    assert "no reward 'sage' here" in other.err
    assert "safe" in other.err
    make_run(tmp_path / "silent", [[total(1, None), total(0, None)] * 2], {})
    silent = typed("reward", "weigh", "silent", "--runs", tmp_path)
    assert "reward 'safe' has no value in any of 4 answers" in silent.err
    assert "burnish show silent --failed 5" in silent.err
    rows = [{"group": "a", "rewards": {"safe": None}}]
    file = typed("reward", "weigh", write(tmp_path / "rows.jsonl", rows))
    assert "'safe' has no value in any of 1 answers.\n" in file.err


def test_a_misspelt_reward_in_one_row_is_told_with_what_it_costs(typed, tmp_path):
    rows: list[dict[str, Any]] = [
        {"group": i // 4, "rewards": {"help": i % 3, "safety": i % 4}} for i in range(144)
    ]
    rows[7]["rewards"] = {"help": 1, "safty": 3}
    shown = typed("reward", "weigh", write(tmp_path / "rows.jsonl", rows))
    says = "leaves out 144 of 144 answers, for a reward is missing: safety in 1, safty in 143"
    assert shown.out.count("leaves out") == 1
    assert says in " ".join(shown.out.split())
    record = json.loads(typed("reward", "weigh", tmp_path / "rows.jsonl", "--json").out)
    assert record["left_out"] == {"sum": 144, "gdpo": 0, "reference_frozen": 0, "tri_factor": 0}
    assert record["rewards"]["safty"]["missing"] == 143


def test_asked_for_late_steps_the_weights_are_those_of_the_whole_run(typed, tmp_path):
    steps = [[total(i * step, -i % 2) for i in range(4)] for step in (1, 3, 2)]
    config = {"policy.advantage.kind": "sum_then_normalise", "policy.advantage.scale": "none"}
    make_run(tmp_path / "med", steps, config)
    whole, late = (
        json.loads(typed("reward", "weigh", "med", "--runs", tmp_path, *words, "--json").out)
        for words in ((), ("--step", "3"))
    )
    for name in ("points", "safe"):
        assert late["rewards"][name]["weight"] == whole["rewards"][name]["weight"]
        assert late["rewards"][name]["reference_mean"] == whole["rewards"][name]["reference_mean"]
    assert (late["answers"], late["replayed"], late["scale"]) == (4, 8, "none")
    assert late["source"] == "run 'med', steps 3 to 3"
    shown = typed("reward", "weigh", "med", "--runs", tmp_path, "--step", "3").out
    assert "8 answers of earlier steps only move the weights" in shown
    assert "sums are scaled as in the run: none" in shown


def test_what_of_the_recipe_is_not_followed_is_named(typed, tmp_path):
    config = {
        "policy.shaping.0.kind": "overlong_penalty", "policy.shaping.0.limit": 9,
        "policy.shaping.0.buffer": 3, "policy.shaping.1.kind": "reference_frozen",
        "policy.advantage.kind": "normalise_then_sum", "policy.select.kind": "function",
        "policy.select.path": "mine.py:pick", "policy.post_scale.kind": "batch_whiten",
        "policy.trust_region.kind": "of another version",
    }  # fmt: skip
    make_run(tmp_path / "med", [[total(i, -i % 2) for i in range(4)]], config)
    shown = typed("reward", "weigh", "med", "--runs", tmp_path)
    assert (
        "not followed of the run's recipe: shaping overlong_penalty, advantage normalise_then_sum, "
        "select mine.py:pick, post_scale batch_whiten" in " ".join(shown.out.split())
    )
    assert not_followed(Recipe()) == ()
    assert not_followed(Recipe(advantage=NormaliseThenSum())) == ()
    assert not_followed(Recipe(advantage=Raw())) == ("advantage raw",)
    assert not_followed(Recipe(shaping=(Contrastive(),))) == ("shaping contrastive",)
    damaged = {"policy.advantage.kind": "unheard of"}
    make_run(tmp_path / "other", [[total(1, 0), total(0, -1)]], damaged)
    other = typed("reward", "weigh", "other", "--runs", tmp_path)
    assert "run 'other': its policy cannot be read" in other.err
